"""Step-3.5: full and sliding layers with heads of their own, a gate per head, experts stacked in three tensors, MTP at N.

Fields and names follow SGLang's step3p5.py and step3p5_mtp.py. The rows of `g_proj`, one per head, stand after the grouped
q, k and v rows, as Megatron-Bridge writes them. Its other form, each row repeated over its head for Megatron's own output
gate, is no permutation: trained, it has no way back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..mapping.arrangement import Arrangement, Block, Shape, grouped_qkv
from ..mapping.rules import Duplicate, Rule, Table
from . import blocks, moe, nextn
from .base import GATED_LOGITS, Family, Variants
from .blocks import Place, plain, rule
from .config import Fields
from .dims import SIGMOID, Dims, Hybrid, Moe, Rope
from .reading import SLIDING, require

MTP_NAMES = nextn.NAMES | {"final_layernorm": "transformer.shared_head.norm.weight"}
NAMES = moe.MoeNames(router="moe.gate.weight", bias="moe.router_bias", experts="moe", shared="share_expert")
ODD = ("heads, windows, rotary bases and gates that differ from layer to layer",)


def _kinds(fields: Fields, count: int, mtp: int) -> list[str]:
    """The attention of every decoder layer, then of every MTP layer: `layer_types` goes on beyond the decoder.

    It may list MTP layers that the model was stripped of.
    """
    types = fields.value("layer_types")
    if not isinstance(types, list) or len(types) < count + mtp:
        fields.wrong("layer_types", f"a list of {count + mtp} entries, MTP layers included", types)
        return [""] * (count + mtp)
    if len(set(types[count:])) > 1:
        fields.wrong("layer_types", "MTP layers of one kind", types[count:])
    return types


def _sparse(fields: Fields, count: int) -> tuple[int, ...]:
    """`moe_layers_enum`, a list or its numbers joined by commas."""
    stated = fields.value("moe_layers_enum")
    listed = stated.split(",") if isinstance(stated, str) else stated
    try:
        found = tuple(sorted({int(entry) for entry in listed or ()}))
    except (TypeError, ValueError):
        found = ()
    if not found or found[-1] >= count:
        fields.wrong("moe_layers_enum", f"layers below {count} (MTP layers are dense)", stated)
    return found


def _heads(fields: Fields) -> dict[str, Any]:
    """`attention_other_setting`: what sliding layers have otherwise."""
    setting = fields.value("attention_other_setting")
    for name in ("num_attention_heads", "num_attention_groups"):
        if not isinstance(setting, dict) or not isinstance(setting.get(name), int):
            fields.wrong("attention_other_setting", f"an object with {name}", setting)
            return {"num_attention_heads": 1, "num_attention_groups": 1}
    return dict(setting)


def dims(fields: Fields) -> Dims:
    """The head is never tied (SGLang Step3p5ForCausalLM); every norm stores w of (1 + w)."""
    require(fields, zero_centered=True, use_qk_norm=True, tie_word_embeddings=False, hidden_act="silu")
    require(fields, use_moe_router_bias=True, moe_router_activation=SIGMOID, use_head_wise_attn_gate=True)
    count, mtp, other = fields.size("num_hidden_layers"), fields.mtp_layers(), _heads(fields)
    kinds, head = _kinds(fields, count, mtp), fields.size("head_dim")
    theta = fields.value("rope_theta")
    windows = Hybrid(
        layers=tuple(i for i, kind in enumerate(kinds[:count]) if kind == SLIDING),
        num_attention_heads=other["num_attention_heads"],
        num_key_value_heads=other["num_attention_groups"],
        head_dim=other.get("head_dim") or head,
        v_head_dim=other.get("head_dim") or head,
        full_v_head_dim=head,
        sinks=False,
        full_sinks=False,
        mtp=SLIDING in kinds[count:],
    )
    experts = Moe(
        layers=_sparse(fields, count),
        num_experts=fields.size("moe_num_experts"),
        intermediate_size=fields.size("moe_intermediate_size"),
        top_k=fields.size("moe_top_k"),
        shared_size=fields.size(fields.first("share_expert_dim", "share_expert_dims")),
        router_bias=True,
        score=SIGMOID,
        scaling=fields.number("moe_router_scaling_factor"),
        norm_topk=fields.flag("norm_expert_weight"),
    )
    return Dims(
        hidden_size=fields.size("hidden_size"),
        num_hidden_layers=count,
        num_attention_heads=fields.size("num_attention_heads"),
        num_key_value_heads=fields.size("num_attention_groups"),
        head_dim=head,
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size(fields.first("max_position_embeddings", "max_seq_len")),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=Rope(float(theta[0]) if isinstance(theta, list) and theta else fields.number("rope_theta")),
        tied=False,
        qk_norm=True,
        zero_centred=True,
        moe=experts,
        hybrid=windows,
        unstated=ODD,
    )


def sliding(d: Dims) -> Dims:
    """The same model as its sliding layers see it."""
    assert d.hybrid is not None
    w = d.hybrid
    return replace(
        d, num_attention_heads=w.num_attention_heads, num_key_value_heads=w.num_key_value_heads, head_dim=w.head_dim
    )


def attention(d: Dims, at: Place) -> list[Rule]:
    q, kv, h = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim, d.hidden_size
    parts: dict[str, Shape] = {
        "self_attn.q_proj.weight": (q, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
        "self_attn.g_proj.weight": (d.num_attention_heads, h),
    }
    qkv = grouped_qkv(d.num_attention_heads, d.num_key_value_heads, d.head_dim)
    gated = Arrangement((*qkv.blocks, Block(3, 0, d.num_attention_heads)))
    return [
        plain(at, blocks.INPUT_NORM, "input_layernorm.weight", h),
        rule(at, "self_attention.linear_qkv.weight", parts, gated),
        plain(at, "self_attention.linear_proj.weight", "self_attn.o_proj.weight", h, q),
        *blocks.qk_norms(at, d.head_dim, d.head_dim),
    ]


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    assert d.moe is not None and d.hybrid is not None
    sparse = blocks.decoder_place(d, layers=d.moe.layers)
    windows = blocks.decoder_place(d, layers=d.hybrid.layers)
    full = blocks.decoder_place(d, layers=blocks.other_layers(d, d.hybrid.layers))
    dense = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    head, at = nextn.place(d, mtp), blocks.decoder_place(d)
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            attention(d, full),
            attention(sliding(d), windows),
            blocks.dense_mlp(d, dense),
            moe.moe_mlp(d, sparse, moe.STACKED, NAMES),
            blocks.mtp_frame(d, head, MTP_NAMES, swapped=False),
            attention(sliding(d) if d.hybrid.mtp else d, head),
            blocks.dense_mlp(d, head),
        ),
        states=(
            *blocks.outer_states(),
            *blocks.dense_layer_states(d, at),
            *moe.moe_states(d, sparse),
            *nextn.frame_states(head),
            *blocks.dense_layer_states(d, head),
        ),
        duplicates=tuple(
            Duplicate(f"model.layers.{d.num_hidden_layers + i}.transformer.shared_head.output.weight", "lm_head.weight")
            for i in range(mtp)
        ),
    )


FAMILY = Family(
    "step3p5",
    "Step-3.5-Flash",
    ("step3p5",),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="Step3p5MTP",
    causal=False,
    proof=GATED_LOGITS,
)
