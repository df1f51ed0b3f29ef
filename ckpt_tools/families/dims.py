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
class Dims:
    """A decoder-only model; names as in Hugging Face configs. `linear_bias`: biases on every projection."""

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
) -> Dims:
    """The fields that every dense decoder shares; problems are gathered in `fields.report`."""
    heads = fields.size("num_attention_heads")
    groups = fields.size("num_key_value_heads")
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
    if activation != "silu":
        fields.wrong("hidden_act", "'silu' (SwiGLU is the only gated MLP mapped)", activation)
    return Dims(
        hidden_size=fields.size("hidden_size"),
        num_hidden_layers=fields.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=read_head_dim(fields, heads),
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=read_rope(fields, absent_theta),
        tied=fields.flag("tie_word_embeddings"),
        qkv_bias=qkv_bias,
        linear_bias=linear_bias,
        qk_norm=qk_norm,
    )
