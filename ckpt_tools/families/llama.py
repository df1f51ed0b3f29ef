"""Llama 2, 3 and models of the same class (SmolLM2)."""

from __future__ import annotations

from . import dense
from .base import LOGITS, Family
from .config import Fields
from .dims import Dims
from .reading import LLAMA_ROPE_THETA, read_dims


def dims(fields: Fields) -> Dims:
    """What older configs leave out is as transformers.LlamaConfig defined it before the field came.

    `attention_bias` and `mlp_bias` (4.33, 4.41): no biases. `num_key_value_heads` (4.31): a key for every query head.
    """
    attention, mlp = (bool(fields.value(name)) for name in ("attention_bias", "mlp_bias"))
    dense.refuse_partial_bias(fields, attention, mlp)
    return read_dims(
        fields, linear_bias=attention and mlp, absent_theta=LLAMA_ROPE_THETA, grouped=fields.has("num_key_value_heads")
    )


FAMILY = Family("llama", "Llama 2, Llama 3, SmolLM2", ("llama",), dims, dense.table, proof=LOGITS)
