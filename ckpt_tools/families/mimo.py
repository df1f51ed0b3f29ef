"""MiMo-7B: Qwen2's body and MTP layers whose joint projection reads [hidden, embedding] (SGLang mimo_mtp.py)."""

from __future__ import annotations

from ..mapping.rules import Table
from . import blocks, dense
from .base import NONE, Family, Variants
from .config import Fields
from .dims import Dims
from .reading import read_dims

MTP_NAMES = {
    "enorm": "token_layernorm.weight",
    "hnorm": "hidden_layernorm.weight",
    "eh_proj": "input_proj.weight",
    "final_layernorm": "final_layernorm.weight",
}


def dims(fields: Fields) -> Dims:
    """The modelling code is Qwen2's: q, k, v have a bias whatever `attention_bias` says, so false is a contradiction."""
    if fields.value("attention_bias") is False:
        fields.wrong("attention_bias", "true (MiMo's q, k and v always have a bias)", False)
    return read_dims(fields, qkv_bias=True)


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants = NONE) -> Table:
    body = dense.table(d, 0, padded_vocab)
    at = blocks.mtp_place("model.mtp_layers.{mtp}.", mtp)
    return Table(
        rules=blocks.joined(body.rules, blocks.mtp_frame(d, at, MTP_NAMES, swapped=True), blocks.dense_layer(d, at)),
        states=(*body.states, *blocks.mtp_frame_states(at), *blocks.dense_layer_states(d, at)),
        duplicates=body.duplicates,
        recomputed=body.recomputed,
    )


FAMILY = Family(
    "mimo",
    "MiMo-7B (Base, SFT, RL)",
    ("mimo",),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="MiMoMTP",
    proof="Megatron's logits, and its MTP logits against the layer's own forward in MiMo's order",
)
