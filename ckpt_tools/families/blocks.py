"""Blocks that families share: the same rules under other prefixes are a decoder layer, an MTP layer, the outer frame.

Names: mcore's on-disk names with TransformerEngine first, then what other specs and versions write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..mapping.arrangement import Arrangement, Shape, copy, gate_over_up, grouped_qkv, padded, swapped_halves
from ..mapping.rules import Axis, Duplicate, Rule, Spelling, State
from .dims import Dims

FUSED = (("norms", "fused"),)
SEPARATE = (("norms", "separate"),)
INPUT_NORM = (
    Spelling("self_attention.linear_qkv.layer_norm_weight", FUSED),
    Spelling("input_layernorm.weight", SEPARATE),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer sits on both sides: name prefixes and the axes they spell."""

    hf: str
    megatron: tuple[Spelling, ...]
    axes: tuple[Axis, ...]

    def spellings(self, *suffixes: Spelling) -> tuple[Spelling, ...]:
        return tuple(
            Spelling(prefix.template + suffix.template, prefix.variants + suffix.variants)
            for prefix in self.megatron
            for suffix in suffixes
        )


def rule(place: Place, megatron: str | tuple[Spelling, ...], hf: dict[str, Shape], arrangement: Arrangement) -> Rule:
    """One rule at a place: Megatron suffix(es) from named Hugging Face parts."""
    suffixes = (Spelling(megatron),) if isinstance(megatron, str) else megatron
    names = tuple(place.hf + name for name in hf)
    return Rule(place.spellings(*suffixes), names, tuple(hf.values()), arrangement, place.axes)


def plain(place: Place, megatron: str | tuple[Spelling, ...], hf: str, *shape: int) -> Rule:
    """A tensor that is the same on both sides."""
    return rule(place, megatron, {hf: shape}, copy(shape[0]))


def states(place: Place, *modules: str) -> tuple[State, ...]:
    return tuple(State(place.spellings(Spelling(module)), place.axes) for module in modules)


def decoder_place(d: Dims, hf: str = "model.layers.{layer}.", layers: tuple[int, ...] | None = None) -> Place:
    """All decoder layers, or some of them."""
    values = range(d.num_hidden_layers) if layers is None or len(layers) == d.num_hidden_layers else layers
    return Place(hf, (Spelling("decoder.layers.{layer}."),), (Axis("layer", values),))


def other_layers(d: Dims, layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layer for layer in range(d.num_hidden_layers) if layer not in set(layers))


def mtp_place(hf: str, count: int, hf_values: range | None = None) -> Place:
    """The decoder layer inside an MTP layer.

    On disk GPT models keep `transformer_layer` in every mcore version; the module attribute became `mtp_model_layer`
    in 0.17 and some forks write that (mcore multi_token_prediction.py, sharded_state_dict).
    """
    names = ("transformer_layer", "mtp_model_layer")
    prefixes = tuple(Spelling(f"mtp.layers.{{mtp}}.{name}.", (("mtp", name),)) for name in names)
    return Place(hf, prefixes, (Axis("mtp", range(count), hf_values),))


def attention(d: Dims, at: Place) -> tuple[Rule, ...]:
    """Grouped-query attention with its input norm; qkv bias, output bias and per-head q/k norms where dims say so."""
    q, kv, h = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim, d.hidden_size
    qkv = grouped_qkv(d.num_attention_heads, d.num_key_value_heads, d.head_dim)
    weights = {
        "self_attn.q_proj.weight": (q, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
    }
    biases = {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    rules = [
        plain(at, INPUT_NORM, "input_layernorm.weight", h),
        rule(at, "self_attention.linear_qkv.weight", dict[str, Shape](weights), qkv),
        plain(at, "self_attention.linear_proj.weight", "self_attn.o_proj.weight", h, q),
    ]
    if d.qkv_bias or d.linear_bias:
        rules.append(rule(at, "self_attention.linear_qkv.bias", dict[str, Shape](biases), qkv))
    if d.linear_bias:
        rules.append(plain(at, "self_attention.linear_proj.bias", "self_attn.o_proj.bias", h))
    if d.qk_norm:
        rules += qk_norms(at, d.head_dim, d.head_dim)
    return tuple(rules)


def qk_norms(at: Place, q: int, k: int) -> list[Rule]:
    """Norms of q and k, per head or over their full width; slime's MiniMax plugin names them as Hugging Face does."""
    return [plain(at, _QK_NORMS[name], f"self_attn.{name}_norm.weight", width) for name, width in (("q", q), ("k", k))]


_QK_NORMS = {
    name: (
        Spelling(f"self_attention.{name}_layernorm.weight", (("qk_norms", "mcore"),)),
        Spelling(f"self_attention.{name}_norm.weight", (("qk_norms", "slime"),)),
    )
    for name in ("q", "k")
}


def dense_mlp(d: Dims, at: Place) -> tuple[Rule, ...]:
    """SwiGLU MLP with its input norm."""
    f, h = d.intermediate_size, d.hidden_size
    norm = (Spelling("mlp.linear_fc1.layer_norm_weight", FUSED), Spelling("pre_mlp_layernorm.weight", SEPARATE))
    gate_up: dict[str, Shape] = {"mlp.gate_proj.weight": (f, h), "mlp.up_proj.weight": (f, h)}
    rules = [
        plain(at, norm, "post_attention_layernorm.weight", h),
        rule(at, "mlp.linear_fc1.weight", gate_up, gate_over_up(f)),
        plain(at, "mlp.linear_fc2.weight", "mlp.down_proj.weight", h, f),
    ]
    if d.linear_bias:
        gate_up_bias: dict[str, Shape] = {"mlp.gate_proj.bias": (f,), "mlp.up_proj.bias": (f,)}
        rules.append(rule(at, "mlp.linear_fc1.bias", gate_up_bias, gate_over_up(f)))
        rules.append(plain(at, "mlp.linear_fc2.bias", "mlp.down_proj.bias", h))
    return tuple(rules)


def dense_layer(d: Dims, at: Place) -> tuple[Rule, ...]:
    return (*attention(d, at), *dense_mlp(d, at))


def dense_layer_states(d: Dims, at: Place) -> tuple[State, ...]:
    """The superset of `_extra_state` objects that TransformerEngine versions ask of a dense layer; surplus is ignored."""
    norms = ("self_attention.q_layernorm", "self_attention.k_layernorm") if d.qk_norm else ()
    linear = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
    return states(at, *linear, "self_attention.core_attention", "input_layernorm", "pre_mlp_layernorm", *norms)


OUTER = Place("", (Spelling(""),), ())


def outer(d: Dims, padded_vocab: int) -> tuple[Rule, ...]:
    """Embedding, final norm and, if untied, the output layer; the vocabulary is padded with zero rows."""
    shape = (d.vocab_size, d.hidden_size)
    vocab = padded(d.vocab_size, padded_vocab)
    rules = [
        rule(OUTER, "embedding.word_embeddings.weight", {"model.embed_tokens.weight": shape}, vocab),
        plain(OUTER, "decoder.final_layernorm.weight", "model.norm.weight", d.hidden_size),
    ]
    if not d.tied:
        rules.append(rule(OUTER, "output_layer.weight", {"lm_head.weight": shape}, vocab))
    return tuple(rules)


def outer_states() -> tuple[State, ...]:
    return states(OUTER, "decoder.final_layernorm")


def tied_head(d: Dims) -> tuple[Duplicate, ...]:
    """A tied model may still store its head (Qwen3-0.6B does); it must equal the embedding."""
    return (Duplicate("lm_head.weight", "model.embed_tokens.weight"),) if d.tied else ()


def rotary_buffers(d: Dims) -> tuple[str, ...]:
    """`inv_freq` buffers that Llama releases before transformers 4.32 stored in every layer, and Kimi-K2 does."""
    return tuple(f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(d.num_hidden_layers))


def mtp_frame(d: Dims, inner: Place, hf: dict[str, str], swapped: bool) -> tuple[Rule, ...]:
    """The frame around an MTP layer: two norms, the joint projection `[h, 2h]`, the final norm.

    `hf` names the family's tensors for enorm, hnorm, eh_proj and final_layernorm. mcore reads [embedding, hidden];
    `swapped` families read [hidden, embedding].
    """
    h = d.hidden_size
    at = replace(inner, megatron=(Spelling("mtp.layers.{mtp}."),))
    halves = swapped_halves(2 * h) if swapped else copy(h)
    norms = [plain(at, f"{name}.weight", hf[name], h) for name in ("enorm", "hnorm", "final_layernorm")]
    return (*norms, rule(at, "eh_proj.weight", {hf["eh_proj"]: (h, 2 * h)}, halves))


def mtp_frame_states(inner: Place) -> tuple[State, ...]:
    at = replace(inner, megatron=(Spelling("mtp.layers.{mtp}."),))
    return states(at, "enorm", "hnorm", "eh_proj", "final_layernorm")


def joined(*groups: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(rule for group in groups for rule in group)
