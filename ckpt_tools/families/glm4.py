"""GLM-4 dense (0414, Z1): sandwich norms, gate and up already fused, interleaved half rotary."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Arrangement, copy
from ..mapping.rules import Table
from . import blocks
from .base import Family, Variants
from .config import Fields
from .dims import Dims
from .reading import read_dims, read_rotary_percent


def dims(fields: Fields) -> Dims:
    """`attention_bias` puts a bias on q, k and v only (transformers Glm4Attention: o_proj has none)."""
    read = read_dims(fields, qkv_bias=fields.flag("attention_bias"))
    return replace(read, sandwich_norms=True, rotary_interleaved=True, rotary_percent=read_rotary_percent(fields))


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    """slime's patched Megatron names the two extra norms as Hugging Face does."""
    if mtp:
        raise ValueError("this family has no MTP layers")
    at, h, f = blocks.decoder_place(d), d.hidden_size, d.intermediate_size
    fused = Arrangement(copy(2 * f).blocks, cuts=(f,))
    mlp = [r for r in blocks.dense_mlp(d, at) if r.hf != (at.hf + "mlp.gate_proj.weight", at.hf + "mlp.up_proj.weight")]
    extra = ("post_self_attn_layernorm", "post_mlp_layernorm")
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            blocks.attention(d, at),
            mlp,
            [blocks.rule(at, "mlp.linear_fc1.weight", {"mlp.gate_up_proj.weight": (2 * f, h)}, fused)],
            [blocks.plain(at, f"{name}.weight", f"{name}.weight", h) for name in extra],
        ),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at), *blocks.states(at, *extra)),
        duplicates=blocks.tied_head(d),
    )


FAMILY = Family(
    "glm4", "GLM-4 0414 (dense)", ("glm4",), dims, table, slime_spec=("slime_plugins.models.glm4", "get_glm_spec")
)
