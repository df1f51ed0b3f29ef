"""Llama 2, 3 and models of the same class (SmolLM2)."""

from __future__ import annotations

from . import dense
from .base import LOGITS, Family
from .config import Fields
from .dims import Dims
from .reading import LLAMA_ROPE_THETA, read_dims


def dims(fields: Fields) -> Dims:
    """`attention_bias` and `mlp_bias` came with transformers 4.33 and 4.41; a config without them has no biases."""
    attention, mlp = (bool(fields.value(name)) for name in ("attention_bias", "mlp_bias"))
    dense.refuse_partial_bias(fields, attention, mlp)
    return read_dims(fields, linear_bias=attention and mlp, absent_theta=LLAMA_ROPE_THETA)


FAMILY = Family("llama", "Llama 2, Llama 3, SmolLM2", ("llama",), dims, dense.table, proof=LOGITS)
