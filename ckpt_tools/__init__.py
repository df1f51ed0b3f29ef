"""Checkpoints between Hugging Face, Megatron and SGLang, with their draft heads."""

__version__ = "0.1.0"
