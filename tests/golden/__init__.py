"""Facts of public checkpoint releases: see ``golden.py``."""

from .golden import MODELS_DIR, Golden, SlimeArgs, Tensor, expand, load, names, slime_args, slime_notes, with_family

__all__ = [
    "MODELS_DIR",
    "Golden",
    "SlimeArgs",
    "Tensor",
    "expand",
    "load",
    "names",
    "slime_args",
    "slime_notes",
    "with_family",
]
