"""Gated attention and gated delta nets (Qwen3-Next, Qwen3.5), in Megatron's native layout and in slime's."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Arrangement, Block, Shape
from ..mapping.rules import Rule, State
from .base import MEGATRON, Variant
from .blocks import Place, plain, rule, states
from .dims import Dims, Gdn

MCORE, SLIME = "mcore", "slime"
IN_PROJ = ("query", "key", "value", "z", "beta", "alpha")  # mcore gated_delta_net.py, _split_tensor_factory
CONV = ("query", "key", "value")


def gated_qkv(heads: int, groups: int, head_dim: int) -> Arrangement:
    """Per group: query heads, their gate heads, key, value; Hugging Face's q_proj holds [q; gate] per head."""
    per_group = heads // groups
    blocks: list[Block] = []
    for group in range(groups):
        mine = range(group * per_group, (group + 1) * per_group)
        for half in (0, 1):
            blocks += [Block(0, (2 * head + half) * head_dim, (2 * head + half + 1) * head_dim) for head in mine]
        kv = (group * head_dim, (group + 1) * head_dim)
        blocks += [Block(1, *kv), Block(2, *kv)]
    return Arrangement(tuple(blocks))


def gated_attention(d: Dims, at: Place) -> tuple[Rule, ...]:
    """Grouped-query attention whose q_proj carries an output gate; per-head q and k norms."""
    q, kv, h = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim, d.hidden_size
    parts: dict[str, Shape] = {
        "self_attn.q_proj.weight": (2 * q, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
    }
    qkv = gated_qkv(d.num_attention_heads, d.num_key_value_heads, d.head_dim)
    return (
        plain(at, "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", h),
        rule(at, "self_attention.linear_qkv.weight", parts, qkv),
        plain(at, "self_attention.linear_proj.weight", "self_attn.o_proj.weight", h, q),
        plain(at, "self_attention.q_layernorm.weight", "self_attn.q_norm.weight", d.head_dim),
        plain(at, "self_attention.k_layernorm.weight", "self_attn.k_norm.weight", d.head_dim),
    )


def _gdn(d: Dims) -> Gdn:
    assert d.gdn is not None, "the family read no GDN dimensions"
    return d.gdn


def in_proj_parts(d: Dims, interleaved: bool) -> tuple[dict[str, Shape], Arrangement]:
    """The parts and blocks of [Q; K; V; Z; B; A].

    Qwen3-Next interleaves per key head: qkvz holds [q, k, r v heads, r z heads], ba [r b, r a]. Qwen3.5 stores qkv (in
    that order), z, b and a apart.
    """
    g, h = _gdn(d), d.hidden_size
    if not interleaved:
        parts: dict[str, Shape] = {
            "linear_attn.in_proj_qkv.weight": (2 * g.keys + g.values, h),
            "linear_attn.in_proj_z.weight": (g.values, h),
            "linear_attn.in_proj_b.weight": (g.value_heads, h),
            "linear_attn.in_proj_a.weight": (g.value_heads, h),
        }
        return parts, Arrangement(tuple(Block(part, 0, shape[0]) for part, shape in enumerate(parts.values())))
    ratio = g.value_heads // g.key_heads
    parts = {
        "linear_attn.in_proj_qkvz.weight": (2 * g.keys + 2 * g.values, h),
        "linear_attn.in_proj_ba.weight": (2 * g.value_heads, h),
    }
    widths = (g.key_dim, g.key_dim, ratio * g.value_dim, ratio * g.value_dim)
    return parts, Arrangement((*_deal(0, g.key_heads, widths), *_deal(1, g.key_heads, (ratio, ratio))))


def _deal(part: int, heads: int, widths: tuple[int, ...]) -> list[Block]:
    """Blocks that gather the i-th field of every head, field by field."""
    stride, found, shift = sum(widths), [], 0
    for width in widths:
        found += [Block(part, head * stride + shift, head * stride + shift + width) for head in range(heads)]
        shift += width
    return found


def delta_net(d: Dims, at: Place, layout: str, interleaved: bool) -> tuple[Rule, ...]:
    """A gated delta net with its input norm. slime keeps a module with Hugging Face's own names and tensors."""
    g, h = _gdn(d), d.hidden_size
    parts, arrangement = in_proj_parts(d, interleaved)
    conv: Shape = (2 * g.keys + g.values, 1, g.kernel)
    own: dict[str, Shape] = {"A_log": (g.value_heads,), "dt_bias": (g.value_heads,)}
    if layout == SLIME:
        copies = {**parts, "linear_attn.conv1d.weight": conv, "linear_attn.norm.weight": (g.value_dim,)}
        copies |= {"linear_attn.out_proj.weight": (h, g.values)} | {f"linear_attn.{name}": s for name, s in own.items()}
        return (
            plain(at, "self_attention.input_layernorm.weight", "input_layernorm.weight", h),
            *(plain(at, f"self_attention.{name}", name, *shape) for name, shape in copies.items()),
        )
    sizes = (g.keys, g.keys, g.values, g.values, g.value_heads, g.value_heads)
    projection = rule(at, "self_attention.in_proj.weight", parts, arrangement)
    filters = plain(at, "self_attention.conv1d.weight", "linear_attn.conv1d.weight", *conv)
    shifted = plain(at, "self_attention.out_norm.weight", "linear_attn.norm.weight", g.value_dim)
    return (
        plain(at, "self_attention.in_proj.layer_norm_weight", "input_layernorm.weight", h),
        replace(projection, pieces=tuple(zip(IN_PROJ, sizes, strict=True))),
        replace(filters, pieces=tuple(zip(CONV, sizes[:3], strict=True))),
        replace(shifted, shift=-1.0),
        plain(at, "self_attention.out_proj.weight", "linear_attn.out_proj.weight", h, g.values),
        *(plain(at, f"self_attention.{name}", f"linear_attn.{name}", *shape) for name, shape in own.items()),
    )


def delta_net_states(at: Place) -> tuple[State, ...]:
    return states(at, "self_attention.in_proj", "self_attention.out_norm", "self_attention.out_proj")


def _marks(d: Dims) -> dict[str, tuple[str, ...]]:
    layer = _gdn(d).layers[0] if _gdn(d).layers else 0
    prefixes = (f"decoder.layers.{layer}.self_attention.", "decoder.layers.self_attention.")
    return {
        MCORE: tuple(f"{prefix}in_proj.layer_norm_weight" for prefix in prefixes),
        SLIME: tuple(f"{prefix}linear_attn.A_log" for prefix in prefixes),
    }


GDN_LAYOUT = Variant("gdn", MEGATRON, (MCORE, SLIME), _marks)
