"""Tiny Hugging Face folders: the same small model in every family, with random weights that are all different."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .hf import HfConfig, Tensors, head_dim, is_tied, mtp_layers, query_groups

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
}


def tiny_config(family: str, **overrides: Any) -> HfConfig:
    """A config.json of hidden size 64, 4 layers, 4 heads, 2 key/value heads and 96 words.

    Qwen3's heads are wider than hidden size / heads, and MiMo has one MTP layer.
    """
    config: HfConfig = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    if family == "qwen3":
        config["head_dim"] = 32
    if family == "mimo":
        config["num_nextn_predict_layers"] = 1
    return config | overrides


def tiny_tensors(config: HfConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """Random weights, each determined by its name and the seed; norms around 1."""
    shapes = _outer_shapes(config)
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer_shapes(config, f"model.layers.{i}.")
    for i in range(mtp_layers(config)):
        shapes |= _mtp_shapes(config, f"model.mtp_layers.{i}.")
    return {name: _random(name, shape, seed).to(dtype) for name, shape in shapes.items()}


def write_folder(folder: Path, config: HfConfig, tensors: Tensors) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def _outer_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not is_tied(config):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _layer_shapes(config: HfConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, ffn, size = config["hidden_size"], config["intermediate_size"], head_dim(config)
    rows = {"q": config["num_attention_heads"] * size, "k": query_groups(config) * size}
    rows["v"] = rows["k"]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.o_proj.weight": (hidden, rows["q"]),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    for part, count in rows.items():
        shapes[f"self_attn.{part}_proj.weight"] = (count, hidden)
        if config["model_type"] in ("qwen2", "mimo"):
            shapes[f"self_attn.{part}_proj.bias"] = (count,)
    if config["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def _mtp_shapes(config: HfConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}{name}.weight": (hidden,) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    shapes[prefix + "input_proj.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, prefix)


def _random(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    values = torch.randn(shape, generator=generator) * 0.1
    return values + 1.0 if "norm" in name else values
