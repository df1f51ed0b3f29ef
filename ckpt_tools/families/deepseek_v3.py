"""DeepSeek-V3, R1, V3.1, V3.2, Kimi-K2, Moonlight, GLM-4.7-Flash, GLM-5: latent attention, MoE, MTP layer at N."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Rule, Table
from . import blocks, mla, moe, nextn
from .base import MTP_LOGITS, Family, Variant, Variants
from .config import Fields
from .dims import Dims, Mla
from .glm4_moe import read_moe
from .reading import read_dims, require


def read_mla(fields: Fields) -> Mla:
    """`q_lora_rank` null means queries are projected directly; the field itself must be there."""
    rank = fields.size("q_lora_rank") if fields.has("q_lora_rank") else None
    return Mla(
        q_lora_rank=rank,
        kv_lora_rank=fields.size("kv_lora_rank"),
        qk_nope_head_dim=fields.size("qk_nope_head_dim"),
        qk_rope_head_dim=fields.size("qk_rope_head_dim"),
        v_head_dim=fields.size("v_head_dim"),
    )


def dims(fields: Fields) -> Dims:
    require(fields, attention_bias=False)
    read = replace(read_dims(fields, mla=read_mla(fields)), moe=read_moe(fields))
    apart = ("rope_interleave false (Megatron's latent attention rotates neighbouring values)",)
    return replace(read, unstated=read.unstated + apart) if fields.value("rope_interleave") is False else read


def with_indexer(fields: Fields) -> Dims:
    """DeepSeek-V3.2 and GLM-5: latent attention that an indexer makes sparse."""
    read = dims(fields)
    assert read.mla is not None
    indexer = indexed_layers(fields, read.num_hidden_layers)
    heads, size, top = (fields.size(f"index_{name}") for name in ("n_heads", "head_dim", "topk"))
    latent = replace(read.mla, indexer=indexer, index_heads=heads, index_dim=size, index_topk=top)
    return replace(read, mla=latent)


def indexed_layers(fields: Fields, count: int) -> tuple[int, ...]:
    """Layers with an indexer of their own; the others reuse the choice of the one before.

    All, or those that `indexer_types` calls "full", or "F" in `index_topk_pattern`, or every `index_topk_freq`-th from
    `index_skip_topk_offset` on with those before it (transformers GlmMoeDsaConfig).
    """
    name = fields.first("indexer_types", "index_topk_pattern")
    kinds = fields.value(name)
    if kinds is not None:
        if len(kinds) < count:
            fields.wrong(name, f"{count} entries", f"{len(kinds)} entries")
        return tuple(i for i, kind in enumerate(kinds[:count]) if kind in ("full", "F"))
    step = fields.size("index_topk_freq") if fields.has("index_topk_freq") else 1
    if step == 1:
        return tuple(range(count))
    offset = fields.size("index_skip_topk_offset")
    return tuple(i for i in range(count) if max(i - offset + 1, 0) % step == 0)


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    assert d.moe is not None and d.mla is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    plain = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    indexed, head = blocks.decoder_place(d, layers=d.mla.indexer), nextn.place(d, mtp)
    rules = blocks.joined(
        blocks.outer(d, padded_vocab),
        mla.mla_attention(d, at),
        latent_mlp(d, plain),
        moe.moe_mlp(d, sparse, chosen["experts"]),
        nextn.frame(d, head),
        mla.mla_attention(d, head),
        moe.moe_mlp(d, head, chosen["mtp_experts"]),
    )
    states = (
        *blocks.outer_states(),
        *mla.mla_states(d, at),
        *blocks.states(plain, "mlp.linear_fc1", "mlp.linear_fc2", "pre_mlp_layernorm"),
        *moe.moe_states(d, sparse),
        *nextn.frame_states(head),
        *mla.mla_states(d, head),
        *moe.moe_states(d, head),
    )
    if d.mla.index_heads:
        rules += (*mla.indexer(d, indexed, chosen["dsa"]), *mla.indexer(d, head, chosen["dsa"]))
        states += (*mla.indexer_states(indexed, chosen["dsa"]), *mla.indexer_states(head, chosen["dsa"]))
    duplicates = (*blocks.tied_head(d), *nextn.copies(d, mtp))
    return Table(rules, states, duplicates, blocks.rotary_buffers(d))


def latent_mlp(d: Dims, at: blocks.Place) -> list[Rule]:
    """The dense MLP with its norm under both names: MLA's local spec keeps it apart, TransformerEngine fuses it."""
    norm, *rest = blocks.dense_mlp(d, at)
    return [replace(norm, spellings=at.spellings(*mla.PRE_MLP_NORM)), *rest]


EXPERTS: tuple[Variant, ...] = (
    moe.packing_variant("experts", ("model.layers.{layer}.",)),
    moe.packing_variant("mtp_experts", ("model.layers.{nextn}.",)),
)
COUNT = "num_nextn_predict_layers"
DRAFT = "DeepseekV3ForCausalLMNextN"

FAMILY = Family(
    "deepseek_v3",
    "DeepSeek-V3, R1, V3.1, Moonlight",
    ("deepseek_v3",),
    dims,
    table,
    COUNT,
    DRAFT,
    variants=EXPERTS,
    proof=MTP_LOGITS,
)
KIMI = Family(
    "kimi_k2", "Kimi-K2, K2-Thinking", ("kimi_k2",), dims, table, COUNT, DRAFT, variants=EXPERTS, proof="as deepseek_v3"
)
V32 = Family(
    "deepseek_v32",
    "DeepSeek-V3.2",
    ("deepseek_v32",),
    with_indexer,
    table,
    COUNT,
    DRAFT,
    variants=(*EXPERTS, mla.DSA_LAYOUT),
    proof=MTP_LOGITS,
)
LITE = Family(
    "glm4_moe_lite",
    "GLM-4.7-Flash",
    ("glm4_moe_lite",),
    dims,
    table,
    COUNT,
    "Glm4MoeLiteForCausalLMNextN",
    variants=EXPERTS,
    proof=MTP_LOGITS,
)
GLM5 = Family(
    "glm_moe_dsa",
    "GLM-5, 5.1, 5.2",
    ("glm_moe_dsa",),
    with_indexer,
    table,
    COUNT,
    "GlmMoeDsaForCausalLMNextN",
    variants=(*EXPERTS, mla.DSA_LAYOUT),
    proof=MTP_LOGITS,
    slime_spec=("slime_plugins.models.glm5.glm5", "get_glm5_spec"),
)
