"""Multi-head latent attention, with and without a query rank, and its DSA indexer in Megatron's and slime's layout."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Arrangement, Block
from ..mapping.rules import Rule, Spelling, State
from .base import MEGATRON, Variant
from .blocks import Place, plain, states
from .dims import Dims, Mla

MCORE, SLIME = "mcore", "slime"
# Written under both names, which share their bytes: TransformerEngine fuses these norms, the local spec does not.
Q_NORM = (Spelling("self_attention.linear_q_up_proj.layer_norm_weight"), Spelling("self_attention.q_layernorm.weight"))
KV_NORM = (
    Spelling("self_attention.linear_kv_up_proj.layer_norm_weight"),
    Spelling("self_attention.kv_layernorm.weight"),
)
PRE_MLP_NORM = (Spelling("mlp.linear_fc1.layer_norm_weight"), Spelling("pre_mlp_layernorm.weight"))


def mla_attention(d: Dims, at: Place) -> tuple[Rule, ...]:
    """Latent attention with its input norm; all straight copies, no rope permutation."""
    m, h, heads = _mla(d), d.hidden_size, d.num_attention_heads
    q_rows = heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    kv_rows = heads * (m.qk_nope_head_dim + m.v_head_dim)
    a, f = "self_attention.", "self_attn."
    if m.q_lora_rank is None:
        query = [plain(at, a + "linear_q_proj.weight", f + "q_proj.weight", q_rows, h)]
    else:
        query = [
            plain(at, a + "linear_q_down_proj.weight", f + "q_a_proj.weight", m.q_lora_rank, h),
            plain(at, Q_NORM, f + "q_a_layernorm.weight", m.q_lora_rank),
            plain(at, a + "linear_q_up_proj.weight", f + "q_b_proj.weight", q_rows, m.q_lora_rank),
        ]
    down = m.kv_lora_rank + m.qk_rope_head_dim
    return (
        plain(at, "input_layernorm.weight", "input_layernorm.weight", h),
        *query,
        plain(at, a + "linear_kv_down_proj.weight", f + "kv_a_proj_with_mqa.weight", down, h),
        plain(at, KV_NORM, f + "kv_a_layernorm.weight", m.kv_lora_rank),
        plain(at, a + "linear_kv_up_proj.weight", f + "kv_b_proj.weight", kv_rows, m.kv_lora_rank),
        plain(at, a + "linear_proj.weight", f + "o_proj.weight", h, heads * m.v_head_dim),
    )


def _mla(d: Dims) -> Mla:
    assert d.mla is not None, "the family read no MLA dimensions"
    return d.mla


def mla_states(d: Dims, at: Place) -> tuple[State, ...]:
    query = ("linear_q_proj",) if _mla(d).q_lora_rank is None else ("linear_q_down_proj", "linear_q_up_proj")
    linear = (
        *query,
        "linear_kv_down_proj",
        "linear_kv_up_proj",
        "linear_proj",
        "core_attention",
        "q_layernorm",
        "kv_layernorm",
    )
    return states(at, "input_layernorm", *(f"self_attention.{name}" for name in linear))


INDEXER = {
    "linear_wq_b.weight": "wq_b.weight",
    "linear_wk.weight": "wk.weight",
    "linear_weights_proj.weight": "weights_proj.weight",
    "k_norm.weight": "k_norm.weight",
    "k_norm.bias": "k_norm.bias",
}
SLIME_SPLIT = 64  # slime's plugin reads [no rope, rope] of 64 rows each; Hugging Face and mcore store rope first


def indexer(d: Dims, at: Place, layout: str) -> tuple[Rule, ...]:
    """The DSA indexer. mcore keeps Hugging Face's order; slime moves each head's last rows before its first 64."""
    m, h = _mla(d), d.hidden_size
    shapes = {
        "wq_b.weight": (m.index_heads * m.index_dim, m.q_lora_rank or h),
        "wk.weight": (m.index_dim, h),
        "weights_proj.weight": (m.index_heads, h),
        "k_norm.weight": (m.index_dim,),
        "k_norm.bias": (m.index_dim,),
    }
    rules = []
    for megatron, hf in INDEXER.items():
        name = f"core_attention.indexer.{megatron}" if layout == MCORE else hf
        made = plain(at, f"self_attention.{name}", f"self_attn.indexer.{hf}", *shapes[hf])
        if layout == SLIME and hf != "weights_proj.weight":
            made = replace(made, arrangement=rope_last(shapes[hf][0] // m.index_dim, m.index_dim))
        rules.append(made)
    return tuple(rules)


def rope_last(heads: int, dim: int) -> Arrangement:
    """Per head: rows from SLIME_SPLIT on, then the first SLIME_SPLIT (slime megatron_to_hf/deepseek.py)."""
    blocks = []
    for start in range(0, heads * dim, dim):
        blocks += [Block(0, start + SLIME_SPLIT, start + dim), Block(0, start, start + SLIME_SPLIT)]
    return Arrangement(tuple(blocks))


def indexer_states(at: Place, layout: str) -> tuple[State, ...]:
    inner = "core_attention.indexer." if layout == MCORE else ""
    names = ("linear_wq_b", "linear_wk", "linear_weights_proj") if layout == MCORE else ("wq_b", "wk", "weights_proj")
    return states(at, *(f"self_attention.{inner}{name}" for name in (*names, "k_norm")))


def _marks(d: Dims) -> dict[str, tuple[str, ...]]:
    layer = d.mla.indexer[0] if d.mla and d.mla.indexer else 0
    prefixes = (f"decoder.layers.{layer}.self_attention.", "decoder.layers.self_attention.")
    return {
        MCORE: tuple(f"{prefix}core_attention.indexer.linear_wk.weight" for prefix in prefixes),
        SLIME: tuple(f"{prefix}wk.weight" for prefix in prefixes),
    }


DSA_LAYOUT = Variant("dsa", MEGATRON, (MCORE, SLIME), _marks)
