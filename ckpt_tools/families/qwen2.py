"""Qwen2 and Qwen2.5: q, k and v always have a bias (transformers.Qwen2Attention), which no config field states."""

from __future__ import annotations

from . import dense
from .base import LOGITS, Family
from .config import Fields
from .dims import Dims
from .reading import read_dims


def dims(fields: Fields) -> Dims:
    return read_dims(fields, qkv_bias=True)


FAMILY = Family("qwen2", "Qwen2, Qwen2.5", ("qwen2",), dims, dense.table, proof=LOGITS)
