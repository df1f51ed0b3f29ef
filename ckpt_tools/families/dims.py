"""The dimensions that decide names, shapes and Megatron's arguments, read from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .config import Fields

DEFAULT_ROPE = "default"
LLAMA_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base, type ("default", "llama3", "yarn", ...) and the type's own fields."""

    theta: float
    kind: str = DEFAULT_ROPE
    scaling: tuple[tuple[str, Any], ...] = ()

    def field(self, name: str) -> Any:
        return dict(self.scaling).get(name)


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts. `layers` are the decoder layers that have it; `shared_size` is 0 without shared experts.

    `score` is the router's score function ("softmax" or "sigmoid"), `scaling` its factor on the routed output.
    """

    layers: tuple[int, ...]
    num_experts: int
    intermediate_size: int
    top_k: int
    shared_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    score: str = "softmax"
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    norm_topk: bool = True
    balancing: str = "seq_aux_loss"


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention; `q_lora_rank` is None where queries are projected directly.

    `indexer` are the decoder layers with a DSA indexer (sparse attention), `index_heads` of `index_dim`.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: tuple[int, ...] = ()
    index_heads: int = 0
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Gdn:
    """Gated delta net; `layers` are the decoder layers that have it instead of attention."""

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """Rows of all key (and of all query) heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Sliding-window layers with heads of their own (MiMo-V2); `full_*` are fields of the other layers that Dims lacks."""

    layers: tuple[int, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int
    full_v_head_dim: int
    sinks: bool
    full_sinks: bool


@dataclass(frozen=True, slots=True)
class Dims:
    """A decoder-only model; names as in Hugging Face configs. `linear_bias`: biases on every projection.

    `output_gate`: q_proj holds a gate beside every query head. `sandwich_norms`: norms after attention and MLP as well.
    `wide_qk_norm`: norms over the full width of q and k.
    `zero_centred`: norms store w of (1 + w). `rotary_percent`: the rotated share of a head.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool = False
    linear_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    output_gate: bool = False
    sandwich_norms: bool = False
    zero_centred: bool = False
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    gdn: Gdn | None = None
    hybrid: Hybrid | None = None

    @property
    def uniform(self) -> bool:
        """All decoder layers hold the same tensors, and Megatron is told so by plain numbers, not by lists."""
        return self.moe is None and self.gdn is None


def read_rope(fields: Fields, absent_theta: float | None = None) -> Rope:
    """Rope from `rope_theta` + `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).

    `absent_theta` is the base that a family's config class defined before the field existed (Llama 1 and 2: 10000,
    transformers.LlamaConfig); without it an absent base is an error.
    """
    nested = fields.value("rope_parameters") or {}
    scaling = dict(nested) or dict(fields.value("rope_scaling") or {})
    theta = nested.get("rope_theta")
    if theta is not None and fields.has("rope_theta") and float(fields.value("rope_theta")) != float(theta):
        fields.report.error(
            "config-conflict",
            "rope_theta has two values",
            where=fields.where,
            expected="one value",
            actual=f"rope_theta: {fields.value('rope_theta')}, rope_parameters.rope_theta: {theta}",
            fix="make them agree in config.json",
        )
    if theta is None:
        theta = absent_theta if absent_theta and not fields.has("rope_theta") else fields.number("rope_theta")
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or DEFAULT_ROPE
    scaling.pop("type", None)
    scaling.pop("rope_theta", None)
    return Rope(float(theta), kind, tuple(sorted(scaling.items())))


def read_layers(fields: Fields, first: str = "first_k_dense_replace") -> tuple[int, ...]:
    """MoE layers of the DeepSeek and GLM families: all from `first_k_dense_replace` on (moe_layer_freq must be 1).

    transformers 5 lists them in `mlp_layer_types` instead, for some families as well.
    """
    if fields.value("moe_layer_freq") not in (None, 1):
        fields.wrong("moe_layer_freq", "1", fields.value("moe_layer_freq"))
    count, dense, types = fields.size("num_hidden_layers"), fields.value(first), fields.value("mlp_layer_types")
    if types is not None and (not isinstance(types, list) or len(types) != count):
        fields.wrong("mlp_layer_types", f"a list of {count} entries", types)
        types = None
    sparse = tuple(i for i, kind in enumerate(types or ()) if kind == "sparse")
    if dense is None and types is not None:
        return sparse
    if isinstance(dense, bool) or not isinstance(dense, int) or dense < 0:
        fields.wrong(first, "a count of dense layers, 0 or more", dense)
        dense = 0
    found = tuple(range(dense, count))
    if types is not None and sparse != found:
        fields.report.error(
            "config-conflict",
            "which layers have experts has two values",
            where=fields.where,
            expected="one value",
            actual=f"{first}: {dense}, mlp_layer_types: sparse in {len(sparse)} of {count} layers",
            fix="make them agree in config.json",
        )
    return found


def read_rotary_percent(fields: Fields) -> float:
    """`partial_rotary_factor`, which transformers 5 keeps in `rope_parameters`."""
    name = "partial_rotary_factor"
    nested = (fields.value("rope_parameters") or {}).get(name)
    if nested is None:
        return fields.number(name)
    if fields.has(name) and fields.value(name) != nested:
        fields.report.error(
            "config-conflict",
            f"{name} has two values",
            where=fields.where,
            expected="one value",
            actual=f"{name}: {fields.value(name)}, rope_parameters.{name}: {nested}",
            fix="make them agree in config.json",
        )
    return float(nested)


def read_head_dim(fields: Fields, heads: int) -> int:
    """`head_dim`, or hidden_size / num_attention_heads where the config leaves it out, as transformers defines it."""
    if fields.has("head_dim"):
        return fields.size("head_dim")
    hidden = fields.size("hidden_size")
    if hidden % heads:
        fields.wrong("num_attention_heads", f"a divisor of hidden_size {hidden}, or an explicit head_dim", heads)
    return max(1, hidden // heads)


def read_dims(
    fields: Fields,
    *,
    qkv_bias: bool = False,
    linear_bias: bool = False,
    qk_norm: bool = False,
    absent_theta: float | None = None,
    epsilon: str = "rms_norm_eps",
    ffn: str = "intermediate_size",
    mla: Mla | None = None,
) -> Dims:
    """The fields that every decoder shares; problems are gathered in `fields.report`.

    `epsilon` and `ffn` name the fields of a family that spells them otherwise. Latent attention has no key-value groups
    and no head size of its own; the non-rotary one stands in for Megatron's kv_channels, as in slime's scripts.
    """
    heads = fields.size("num_attention_heads")
    groups = heads if mla else fields.size("num_key_value_heads")
    if heads % groups:
        fields.report.error(
            "heads-not-divisible",
            f"{groups} key-value heads do not divide {heads} attention heads",
            where=fields.where,
            expected="num_attention_heads a multiple of num_key_value_heads",
            actual=f"{heads} and {groups}",
            fix="correct config.json",
        )
    activation = fields.value("hidden_act")
    if activation not in (None, "silu"):
        fields.wrong("hidden_act", "'silu' (SwiGLU is the only gated MLP mapped)", activation)
    return Dims(
        hidden_size=fields.size("hidden_size"),
        num_hidden_layers=fields.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=mla.qk_nope_head_dim if mla else read_head_dim(fields, heads),
        intermediate_size=fields.size(ffn),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        rms_norm_eps=fields.number(epsilon),
        rope=read_rope(fields, absent_theta),
        tied=fields.flag("tie_word_embeddings"),
        qkv_bias=qkv_bias,
        linear_bias=linear_bias,
        qk_norm=qk_norm,
        mla=mla,
    )
