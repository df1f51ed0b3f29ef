"""Ling and Ring (inclusionAI, v1 and v2): joint q, k, v in one tensor, routed experts, MTP layer at N.

Names and defaults follow SGLang's bailing_moe.py and bailing_moe_nextn.py. v2 releases say model_type `bailing_moe` or
`bailing_moe_v2`.
"""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Arrangement, Block, Shape, grouped_qkv
from ..mapping.rules import Duplicate, Rule, Table
from . import blocks, moe, nextn
from .base import MTP_LOGITS, Family, Variants
from .blocks import Place, plain, rule
from .config import Fields
from .dims import SIGMOID, SOFTMAX, Dims, Moe
from .reading import read_dims, read_layers, read_rotary_percent, require

MTP_NAMES = nextn.NAMES | {"final_layernorm": "final_layernorm.weight"}
EXPERT_NAMES = moe.MoeNames(bias="mlp.gate.expert_bias")
EMBEDDING, HEAD = "model.word_embeddings.weight", "lm_head.weight"


def read_moe(fields: Fields) -> Moe:
    """v1 has neither groups nor a selection bias, and scores by softmax; with the bias the scores are sigmoids."""
    size, bias = fields.size("moe_intermediate_size"), fields.value("moe_router_enable_expert_bias") is True
    score = SIGMOID if bias else SOFTMAX
    require(fields, score_function=score, multi_gate=False)
    shared = fields.value("moe_shared_expert_intermediate_size") or size
    return Moe(
        layers=read_layers(fields),
        num_experts=fields.size("num_experts"),
        intermediate_size=size,
        top_k=fields.size("num_experts_per_tok"),
        shared_size=(fields.value("num_shared_experts") or 0) * shared,
        router_bias=bias,
        score=score,
        scaling=fields.number("routed_scaling_factor") if fields.has("routed_scaling_factor") else 1.0,
        groups=fields.value("n_group") or 1,
        top_groups=fields.value("topk_group") or 1,
        norm_topk=fields.flag("norm_topk_prob"),
        balancing="none",
    )


def dims(fields: Fields) -> Dims:
    """Absent `use_qk_norm` and `partial_rotary_factor` mean none and all of it (v1); keys decide about the norms anyway."""
    require(fields, use_bias=False, norm_head=False)
    read = read_dims(fields, qkv_bias=fields.flag("use_qkv_bias"), qk_norm=fields.value("use_qk_norm") is True)
    partial = fields.has("partial_rotary_factor") or "partial_rotary_factor" in (fields.value("rope_parameters") or {})
    percent = read_rotary_percent(fields) if partial else 1.0
    if not partial and fields.has("rotary_dim"):
        percent = fields.size("rotary_dim") / read.head_dim
    return replace(read, moe=read_moe(fields), rotary_percent=percent)


def joint_qkv(heads: int, groups: int, head_dim: int) -> Arrangement:
    """Megatron's order, group by group, from one tensor that holds [all q; all k; all v]."""
    starts = (0, heads * head_dim, (heads + groups) * head_dim)
    apart = grouped_qkv(heads, groups, head_dim).blocks
    return Arrangement(tuple(Block(0, starts[b.part] + b.start, starts[b.part] + b.stop) for b in apart))


def attention(d: Dims, at: Place) -> list[Rule]:
    q, kv, h = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim, d.hidden_size
    qkv, name = joint_qkv(d.num_attention_heads, d.num_key_value_heads, d.head_dim), "attention.query_key_value"
    weight: dict[str, Shape] = {f"{name}.weight": (q + 2 * kv, h)}
    bias: dict[str, Shape] = {f"{name}.bias": (q + 2 * kv,)}
    a = "self_attention."
    return [
        plain(at, blocks.INPUT_NORM, "input_layernorm.weight", h),
        rule(at, a + "linear_qkv.weight", weight, qkv),
        *([rule(at, a + "linear_qkv.bias", bias, qkv)] if d.qkv_bias else []),
        plain(at, a + "linear_proj.weight", "attention.dense.weight", h, q),
        *(
            plain(at, f"{a}{one}_layernorm.weight", f"attention.{long}_layernorm.weight", d.head_dim)
            for one, long in (("q", "query"), ("k", "key"))
            if d.qk_norm
        ),
    ]


def outer(d: Dims, padded_vocab: int) -> list[Rule]:
    embedding, *rest = blocks.outer(d, padded_vocab)
    return [replace(embedding, hf=(EMBEDDING,)), *rest]


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    assert d.moe is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    dense = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    head = nextn.place(d, mtp)
    return Table(
        rules=blocks.joined(
            outer(d, padded_vocab),
            attention(d, at),
            blocks.dense_mlp(d, dense),
            moe.moe_mlp(d, sparse, chosen["experts"], EXPERT_NAMES),
            blocks.mtp_frame(d, head, MTP_NAMES, swapped=False),
            attention(d, head),
            moe.moe_mlp(d, head, chosen["mtp_experts"], EXPERT_NAMES),
        ),
        states=(
            *blocks.outer_states(),
            *blocks.dense_layer_states(d, at),
            *moe.moe_states(d, sparse),
            *nextn.frame_states(head),
            *blocks.dense_layer_states(d, head),
            *moe.moe_states(d, head),
        ),
        duplicates=(Duplicate(HEAD, EMBEDDING),) if d.tied else (),
    )


FAMILY = Family(
    "bailing_moe",
    "Ling, Ring (1.5, 2.0: mini, flash, 1T)",
    ("bailing_moe", "bailing_moe_v2"),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="BailingMoeForCausalLMNextN",
    causal=False,
    proof=MTP_LOGITS,
    variants=(
        moe.packing_variant("experts", ("model.layers.{layer}.",)),
        moe.packing_variant("mtp_experts", ("model.layers.{nextn}.",)),
    ),
)
