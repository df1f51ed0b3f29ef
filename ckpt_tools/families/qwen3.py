"""Qwen3 dense: a norm per head on q and k, explicit head_dim."""

from __future__ import annotations

from . import dense
from .base import LOGITS, Family
from .config import Fields
from .dims import Dims
from .reading import read_dims


def dims(fields: Fields) -> Dims:
    """`attention_bias` true would put a bias on o_proj as well, and no release does."""
    dense.refuse_partial_bias(fields, fields.flag("attention_bias"), mlp=False)
    fields.size("head_dim")
    return read_dims(fields, qk_norm=True)


FAMILY = Family("qwen3", "Qwen3 (dense)", ("qwen3",), dims, dense.table, proof=LOGITS)
