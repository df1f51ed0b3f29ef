"""MiMo-V2 (Flash, V2.5): sliding-window layers with sinks and more key-value heads, v heads of their own size.

q, k and v are stored apart (Flash) or as one `qkv_proj`, cut for tensor-parallel parts: every part holds its q, k and v rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..mapping.arrangement import Arrangement, Block, Shape
from ..mapping.rules import Rule, State, Table
from . import blocks, moe
from .base import HF, Family, Variant, Variants
from .blocks import Place, plain, rule
from .config import Fields
from .dims import SIGMOID, Dims, Hybrid, Moe
from .reading import read_dims, require

MTP_NAMES = {
    "enorm": "enorm.weight",
    "hnorm": "hnorm.weight",
    "eh_proj": "eh_proj.weight",
    "final_layernorm": "final_layernorm.weight",
}
FUSED, APART = "fused", "separate"
RESTARTING = ("qkv_proj", "k_proj")  # modules whose scale grids may start anew in every part


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one kind of layer; `parts` are the tensor-parallel parts of a fused projection."""

    q: int
    kv: int
    dim: int
    v_dim: int
    parts: int

    @property
    def rows(self) -> tuple[int, int, int]:
        return self.q * self.dim, self.kv * self.dim, self.kv * self.v_dim

    def grouped(self, fused: bool) -> Arrangement:
        """Megatron's order, per group [its query heads, key, value], from whichever way the release stores them."""
        per_group = self.q // self.kv * self.dim
        blocks_: list[Block] = []
        for group in range(self.kv):
            starts = (group * per_group, group * self.dim, group * self.v_dim)
            for part, (start, length) in enumerate(zip(starts, (per_group, self.dim, self.v_dim), strict=True)):
                at = self._fused_row(part, start) if fused else start
                blocks_.append(Block(0 if fused else part, at, at + length))
        return Arrangement(tuple(blocks_))

    def _fused_row(self, part: int, row: int) -> int:
        """The row of the fused tensor that holds row `row` of q (0), k (1) or v (2)."""
        each = [rows // self.parts for rows in self.rows]
        chunk, inside = divmod(row, each[part])
        return chunk * sum(each) + sum(each[:part]) + inside


def dims(fields: Fields) -> Dims:
    """`hybrid_layer_pattern` marks sliding-window layers with 1, `moe_layer_freq` MoE layers."""
    count = fields.size("num_hidden_layers")
    pattern, frequency = (fields.value(name) for name in ("hybrid_layer_pattern", "moe_layer_freq"))
    for name, value in (("hybrid_layer_pattern", pattern), ("moe_layer_freq", frequency)):
        if not isinstance(value, list) or len(value) != count:
            fields.wrong(name, f"a list of {count} numbers", value)
    read = read_dims(fields, epsilon="layernorm_epsilon")
    require(fields, attention_bias=False, n_shared_experts=0, scoring_func=SIGMOID, topk_method="noaux_tc")
    fields.done()
    windows = Hybrid(
        layers=tuple(i for i, kind in enumerate(pattern) if kind == 1),
        num_attention_heads=fields.size("swa_num_attention_heads"),
        num_key_value_heads=fields.size("swa_num_key_value_heads"),
        head_dim=fields.size("swa_head_dim"),
        v_head_dim=fields.size("swa_v_head_dim"),
        full_v_head_dim=fields.size("v_head_dim"),
        sinks=fields.flag("add_swa_attention_sink_bias"),
        full_sinks=fields.flag("add_full_attention_sink_bias"),
    )
    experts = Moe(
        layers=tuple(i for i, sparse in enumerate(frequency) if sparse),
        num_experts=fields.size("n_routed_experts"),
        intermediate_size=fields.size("moe_intermediate_size"),
        top_k=fields.size("num_experts_per_tok"),
        router_bias=True,
        score=SIGMOID,
        scaling=float(fields.value("routed_scaling_factor") or 1.0),
        norm_topk=fields.flag("norm_topk_prob"),
    )
    percent, odd = fields.number("partial_rotary_factor"), ("heads and windows that differ from layer to layer",)
    return replace(read, moe=experts, hybrid=windows, rotary_percent=percent, unstated=read.unstated + odd)


def _heads(d: Dims, window: bool) -> Heads:
    """Fused projections are cut into as many parts as full-attention layers have key-value heads."""
    h = d.hybrid
    assert h is not None
    if window:
        return Heads(h.num_attention_heads, h.num_key_value_heads, h.head_dim, h.v_head_dim, d.num_key_value_heads)
    return Heads(d.num_attention_heads, d.num_key_value_heads, d.head_dim, h.full_v_head_dim, d.num_key_value_heads)


def _attention(d: Dims, at: Place, window: bool, fused: bool) -> list[Rule]:
    assert d.hybrid is not None
    heads, h = _heads(d, window), d.hidden_size
    q, k, v = heads.rows
    parts: dict[str, Shape] = {"self_attn.qkv_proj.weight": (q + k + v, h)}
    if not fused:
        parts = {f"self_attn.{name}_proj.weight": (rows, h) for name, rows in zip("qkv", heads.rows, strict=True)}
    rules = [
        plain(at, "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", h),
        rule(at, "self_attention.linear_qkv.weight", parts, heads.grouped(fused)),
        plain(at, "self_attention.linear_proj.weight", "self_attn.o_proj.weight", h, heads.q * heads.v_dim),
    ]
    if d.hybrid.sinks if window else d.hybrid.full_sinks:
        rules.append(
            plain(at, "self_attention.core_attention.softmax_offset", "self_attn.attention_sink_bias", heads.q)
        )
    return rules


def _mtp_mlp(d: Dims, at: Place) -> list[Rule]:
    """The dense MLP of an MTP layer; its norm has a name of its own."""
    norm, *rest = blocks.dense_mlp(d, at)
    return [replace(norm, hf=(at.hf + "pre_mlp_layernorm.weight",)), *rest]


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    assert d.moe is not None and d.hybrid is not None
    fused = chosen["qkv"] == FUSED
    windows = blocks.decoder_place(d, layers=d.hybrid.layers)
    full = blocks.decoder_place(d, layers=blocks.other_layers(d, d.hybrid.layers))
    sparse = blocks.decoder_place(d, layers=d.moe.layers)
    dense = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    head = blocks.mtp_place("model.mtp.layers.{mtp}.", mtp)
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            _attention(d, full, False, fused),
            _attention(d, windows, True, fused),
            blocks.dense_mlp(d, dense),
            moe.moe_mlp(d, sparse, chosen["experts"]),
            blocks.mtp_frame(d, head, MTP_NAMES, swapped=False),
            _attention(d, head, True, fused),
            _mtp_mlp(d, head),
        ),
        states=_states(d, head),
        duplicates=blocks.tied_head(d),
    )


def _states(d: Dims, head: Place) -> tuple[State, ...]:
    assert d.moe is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    body = (*blocks.outer_states(), *blocks.dense_layer_states(d, at), *moe.moe_states(d, sparse))
    return (*body, *blocks.mtp_frame_states(head), *blocks.dense_layer_states(d, head))


def _marks(d: Dims) -> dict[str, tuple[str, ...]]:
    """In the first layer, or in the first MTP layer of a head that is alone in its folder."""
    places = ("model.layers.0.self_attn.", "model.mtp.layers.0.self_attn.")
    return {
        FUSED: tuple(f"{at}qkv_proj.weight" for at in places),
        APART: tuple(f"{at}q_proj.weight" for at in places),
    }


def quantised_parts(d: Dims, name: str) -> int:
    """Parts of a quantised tensor whose scale grids start anew: those of a fused projection, else one per tensor.

    MiMo-V2-Flash's full-attention k_proj starts anew per head.
    """
    return d.num_key_value_heads if name.split(".")[-2] in RESTARTING else 1


FAMILY = Family(
    "mimo_v2",
    "MiMo-V2-Flash, V2.5",
    ("mimo_v2", "mimo_v2_flash"),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="MiMoV2MTP",
    variants=(Variant("qkv", HF, (FUSED, APART), _marks), moe.packing_variant("experts", ("model.layers.{layer}.",))),
    undeclared_mtp=True,
    scale_parts=quantised_parts,
    other_towers=(("visual",), ("audio_encoder",), ("speech_embeddings",)),
)
