"""gpt-oss: attention sinks, biases everywhere, experts in mxfp4 or as transposed bfloat16 matrices, gate and up interleaved."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Arrangement, copy, interleaved_gate_up
from ..mapping.rules import Axis, Codec, Rule, Table
from . import blocks, moe
from .base import HF, LOGITS, Family, Variant, Variants
from .blocks import Place, plain, rule
from .config import Fields
from .dims import Dims, Moe
from .reading import read_dims

BF16, MXFP4 = "bf16", "mxfp4"
GROUP = 32  # values per scale


def dims(fields: Fields) -> Dims:
    """`intermediate_size` is an expert's; every projection and the router have a bias."""
    if fields.value("attention_bias") is not True:
        fields.wrong("attention_bias", "true (every release has biases)", fields.value("attention_bias"))
    read = read_dims(fields, linear_bias=True)
    odd = ("attention sinks", "an activation clamped and scaled by its own rule")
    experts = Moe(
        layers=tuple(range(read.num_hidden_layers)),
        num_experts=fields.size("num_local_experts"),
        intermediate_size=read.intermediate_size,
        top_k=fields.size("num_experts_per_tok"),
    )
    return replace(read, moe=experts, unstated=read.unstated + odd)


def _experts(d: Dims, at: Place, form: str) -> list[Rule]:
    """fc1 `[2f, h]` with gate and up apart, fc2 `[h, f]`, and their biases, per expert."""
    assert d.moe is not None
    f, h = d.moe.intermediate_size, d.hidden_size
    each = replace(at, axes=(*at.axes, Axis("expert", range(d.moe.num_experts))))
    fc1 = _matrix(each, "linear_fc1", "gate_up_proj", (2 * f, h), interleaved_gate_up(f), form)
    fc2 = _matrix(each, "linear_fc2", "down_proj", (h, f), copy(h), form)
    at1, at2 = (f"mlp.experts.experts.{name}.bias" for name in ("linear_fc1", "linear_fc2"))
    bias1 = rule(each, at1, {"mlp.experts.gate_up_proj_bias": (2 * f,)}, interleaved_gate_up(f))
    return [fc1, fc2, bias1, plain(each, at2, "mlp.experts.down_proj_bias", h)]


def _matrix(at: Place, megatron: str, hf: str, shape: tuple[int, int], arrangement: Arrangement, form: str) -> Rule:
    rows, columns = shape
    name = f"mlp.experts.{hf}" + ("_blocks" if form == MXFP4 else "")
    made = rule(at, f"mlp.experts.experts.{megatron}.weight", {name: shape}, arrangement)
    if form == BF16:
        return moe.transposed(made)
    groups = columns // GROUP
    scales = (f"{at.hf}mlp.experts.{hf}_scales", (rows, groups))
    return replace(made, codec=Codec("mxfp4", (rows, groups, GROUP // 2), f"{at.hf}mlp.experts.{hf}", scales))


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    if mtp:
        raise ValueError("this family has no MTP layers")
    assert d.moe is not None
    at, h, e = blocks.decoder_place(d), d.hidden_size, d.moe.num_experts
    sinks = plain(at, "self_attention.core_attention.softmax_offset", "self_attn.sinks", d.num_attention_heads)
    router = [
        plain(at, moe.PRE_MLP_NORM, "post_attention_layernorm.weight", h),
        plain(at, "mlp.router.weight", "mlp.router.weight", e, h),
        plain(at, "mlp.router.bias", "mlp.router.bias", e),
    ]
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab), blocks.attention(d, at), (sinks,), router, _experts(d, at, chosen["experts"])
        ),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at), *moe.moe_states(d, at)),
        duplicates=blocks.tied_head(d),
    )


def _marks(d: Dims) -> dict[str, tuple[str, ...]]:
    at = "model.layers.0.mlp.experts.gate_up_proj"
    return {BF16: (at,), MXFP4: (f"{at}_blocks",)}


FAMILY = Family(
    "gpt_oss",
    "gpt-oss 20B, 120B",
    ("gpt_oss",),
    dims,
    table,
    variants=(Variant("experts", HF, (BF16, MXFP4), _marks),),
    exports=(("experts", BF16),),
    own_quantisation="mxfp4",
    proof=LOGITS,
)
