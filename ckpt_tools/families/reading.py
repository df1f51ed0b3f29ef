"""Reading dimensions from config.json: what families share."""

from __future__ import annotations

from .config import Fields
from .dims import DEFAULT_ROPE, Dims, Mla, Rope

LLAMA_ROPE_THETA = 10000.0
SLIDING = "sliding_attention"


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
    """MoE layers of the DeepSeek and GLM families: all from `first_k_dense_replace` on, or those of a list.

    The list is `mlp_layer_types` (transformers 5) or `moe_layer_freq`, which otherwise must be 1.
    """
    count, dense, types = fields.size("num_hidden_layers"), fields.value(first), fields.value("mlp_layer_types")
    frequency = fields.value("moe_layer_freq")
    if isinstance(frequency, list) and types is None:
        types, frequency = ["sparse" if entry else "dense" for entry in frequency], 1
    if frequency not in (None, 1):
        fields.wrong("moe_layer_freq", f"1, or a list of {count} entries", frequency)
    if types is not None and (not isinstance(types, list) or len(types) != count):
        fields.wrong("moe_layer_freq or mlp_layer_types", f"a list of {count} entries", types)
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
            actual=f"{first}: {dense}, the list of layers: sparse in {len(sparse)} of {count}",
            fix="make them agree in config.json",
        )
    return found


def require(fields: Fields, **wanted: object) -> None:
    """Refuse a config that states another value than the one that all releases have and that the tables rest on."""
    for name, value in wanted.items():
        if fields.value(name) not in (None, value):
            fields.wrong(name, f"{value!r} (no release of the family has another)", fields.value(name))


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
        unstated=windows(fields),
    )


def windows(fields: Fields) -> tuple[str, ...]:
    """Sliding windows, which Megatron's arguments of a checkpoint do not state, in the words of `Dims.unstated`."""
    if fields.value("use_sliding_window") is True or SLIDING in (fields.value("layer_types") or ()):
        return (f"sliding windows of {fields.value('sliding_window')} in some layers",)
    return ()
