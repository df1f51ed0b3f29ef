"""Qwen3-Next, Qwen3.5, Qwen3.6: gated delta nets and gated attention, `mtp.*` at top level, zero-centred norms."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Axis, Rule, State, Table
from . import blocks, gdn, moe, wrappers
from .base import HF, MEGATRON, MTP_LOGITS, Family, Variant, Variants
from .blocks import Place
from .config import Fields
from .dims import Dims, Gdn, Moe
from .qwen3_moe import sparse_layers
from .reading import read_dims, read_rotary_percent, require

MTP_NAMES = {
    "enorm": "mtp.pre_fc_norm_embedding.weight",
    "hnorm": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj": "mtp.fc.weight",
    "final_layernorm": "mtp.norm.weight",
}
EXPERT_NAMES = moe.MoeNames(shared="mlp.shared_expert")
LINEAR = "linear_attention"


def linear_layers(fields: Fields) -> tuple[int, ...]:
    """`layer_types`, or every layer that `full_attention_interval` skips (transformers Qwen3NextConfig)."""
    count, types = fields.size("num_hidden_layers"), fields.value("layer_types")
    if types is not None:
        if len(types) != count:
            fields.wrong("layer_types", f"{count} entries", f"{len(types)} entries")
        return tuple(i for i, kind in enumerate(types[:count]) if kind == LINEAR)
    interval = fields.size("full_attention_interval")
    return tuple(i for i in range(count) if (i + 1) % interval)


def read_gdn(fields: Fields) -> Gdn:
    return Gdn(
        layers=linear_layers(fields),
        key_heads=fields.size("linear_num_key_heads"),
        value_heads=fields.size("linear_num_value_heads"),
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        kernel=fields.size("linear_conv_kernel_dim"),
    )


def read_moe(fields: Fields) -> Moe:
    """Qwen3.5 has no `norm_topk_prob`: it always renormalises (transformers Qwen3_5MoeTopKRouter)."""
    return Moe(
        layers=sparse_layers(fields),
        num_experts=fields.size("num_experts"),
        intermediate_size=fields.size("moe_intermediate_size"),
        top_k=fields.size("num_experts_per_tok"),
        shared_size=fields.size("shared_expert_intermediate_size"),
        shared_gate=True,
        norm_topk=fields.value("norm_topk_prob") is not False,
    )


def hybrid_dims(fields: Fields) -> Dims:
    """Qwen3.5 MoE configs have no intermediate_size: no layer is dense, and Megatron is told the experts' size."""
    require(fields, attention_bias=False, attn_output_gate=True)
    fields.size("head_dim")
    read = read_dims(fields, qk_norm=True, ffn=fields.first("intermediate_size", "moe_intermediate_size"))
    return replace(
        read, output_gate=True, zero_centred=True, rotary_percent=read_rotary_percent(fields), gdn=read_gdn(fields)
    )


def moe_dims(fields: Fields) -> Dims:
    return replace(hybrid_dims(fields), moe=read_moe(fields))


def _table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants, interleaved: bool) -> Table:
    assert d.gdn is not None
    layer = "model.layers.{layer}."
    linear = blocks.decoder_place(d, layer, d.gdn.layers)
    full = blocks.decoder_place(d, layer, blocks.other_layers(d, d.gdn.layers))
    head = blocks.mtp_place("mtp.layers.{mtp}.", mtp)
    once = Place("", (), (Axis("mtp", range(min(mtp, 1)), silent=HF),))
    frame = blocks.mtp_frame(d, once, MTP_NAMES, swapped=chosen.get("mtp_halves") == "swapped")
    layout = chosen["gdn"]
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            gdn.delta_net(d, linear, layout, interleaved),
            gdn.gated_attention(d, full),
            _mlp(d, layer, chosen),
            frame,
            gdn.gated_attention(d, head),
            _head_mlp(d, head, chosen),
        ),
        states=(
            *blocks.outer_states(),
            *gdn.delta_net_states(linear),
            *blocks.dense_layer_states(d, full),
            *_mlp_states(d, blocks.decoder_place(d, layer)),
            *blocks.mtp_frame_states(head),
            *blocks.dense_layer_states(d, head),
            *_mlp_states(d, head),
        ),
        duplicates=blocks.tied_head(d),
    )


def _mlp(d: Dims, layer: str, chosen: Variants) -> tuple[Rule, ...]:
    if d.moe is None:
        return blocks.dense_mlp(d, blocks.decoder_place(d, layer))
    plain = blocks.decoder_place(d, layer, blocks.other_layers(d, d.moe.layers))
    sparse = blocks.decoder_place(d, layer, d.moe.layers)
    return (*blocks.dense_mlp(d, plain), *moe.moe_mlp(d, sparse, chosen["experts"], EXPERT_NAMES))


def _head_mlp(d: Dims, head: Place, chosen: Variants) -> tuple[Rule, ...]:
    return blocks.dense_mlp(d, head) if d.moe is None else moe.moe_mlp(d, head, chosen["mtp_experts"], EXPERT_NAMES)


def _mlp_states(d: Dims, at: Place) -> tuple[State, ...]:
    dense = blocks.states(at, "mlp.linear_fc1", "mlp.linear_fc2")
    return dense if d.moe is None else (*dense, *moe.moe_states(d, at))


def next_table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    return _table(d, mtp, padded_vocab, chosen, interleaved=True)


def flat_table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    return _table(d, mtp, padded_vocab, chosen, interleaved=False)


EXPERTS = (
    moe.packing_variant("experts", ("model.layers.{layer}.",), EXPERT_NAMES),
    moe.packing_variant("mtp_experts", ("mtp.layers.0.",), EXPERT_NAMES),
)
# slime exchanges the halves of Qwen3-Next's joint projection; no key tells, so only an option does.
HALVES = Variant("mtp_halves", MEGATRON, ("straight", "swapped"), lambda d: {})
COUNT, DRAFT = "mtp_num_hidden_layers", "Qwen3_5ForCausalLMMTP"
FLAT_SPEC = ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec")
LAYOUTS, VISUAL = (wrappers.INNER, wrappers.TEXT), (("model", "visual"),)

FAMILY = Family(
    "qwen3_next",
    "Qwen3-Next-80B-A3B",
    ("qwen3_next",),
    moe_dims,
    next_table,
    mtp_field="num_nextn_predict_layers",
    draft_class="Qwen3NextForCausalLMMTP",
    variants=(*EXPERTS, gdn.GDN_LAYOUT, HALVES),
    undeclared_mtp=True,
    mtp_limit=1,
    proof=MTP_LOGITS,
    slime_spec=("slime_plugins.models.qwen3_next", "get_qwen3_next_spec"),
)
_DENSE = Family(
    "qwen3_5",
    "Qwen3.5 (dense), Qwen3.6 (dense)",
    ("qwen3_5_text",),
    hybrid_dims,
    flat_table,
    COUNT,
    DRAFT,
    variants=(gdn.GDN_LAYOUT,),
    mtp_limit=1,
    proof=MTP_LOGITS,
    slime_spec=FLAT_SPEC,
)
_MOE = replace(
    _DENSE,
    name="qwen3_5_moe",
    title="Qwen3.5 MoE, Qwen3.6 MoE",
    model_types=("qwen3_5_moe_text",),
    dims=moe_dims,
    variants=(*EXPERTS, gdn.GDN_LAYOUT),
)
DENSE = wrappers.wrapped(_DENSE, ("qwen3_5", "qwen3_5_text"), LAYOUTS, VISUAL)
MOE = wrappers.wrapped(_MOE, ("qwen3_5_moe", "qwen3_5_moe_text"), LAYOUTS, VISUAL)
