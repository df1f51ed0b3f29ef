"""The tensors of EAGLE heads: canonical names, the spellings that sources use for them, their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...mapping.arrangement import Shape
from ..spec import D2T, EAGLE3, EMBED, FC, FC_BIAS, HEAD, T2D, DraftSpec

NORM, INPUT_NORM = "norm.weight", "input_norm.weight"
HIDDEN_NORM, LAYER_NORM, POST_NORM = "hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"
MIDLAYER = "midlayer."
# A training checkpoint keeps the head inside a module; SGLang itself accepts names with and without `model.`.
LEADING = ("", "model.", "draft_model.")
TARGET_COPY = "target_model"  # SafeAILab's DeepSpeed checkpoints hold the target as well
AUX_NORM_ALIASES = {"fc_norm.0.weight": "aux_norm_low.weight", "fc_norm.1.weight": "aux_norm_mid.weight"}
AUX_NORM_ALIASES |= {"fc_norm.2.weight": "aux_norm_high.weight"}
MAX_LAYERS, MAX_FEATURES = 16, 16

GQA = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLA = tuple(
    f"self_attn.{name}"
    for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
)
QKV_BIAS = tuple(f"self_attn.{name}_proj.bias" for name in "qkv")
QK_NORM = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
O_BIAS = "self_attn.o_proj.bias"  # transformers' attention_bias means q, k, v and o
OTHER_BIASES = (O_BIAS, *(f"{name}.bias" for name in MLP))
LAYER = (
    *(f"{name}.weight" for name in (*GQA, *MLA, *MLP)),
    *QKV_BIAS,
    *OTHER_BIASES,
    *QK_NORM,
    HIDDEN_NORM,
    LAYER_NORM,
    POST_NORM,
)
FC_NORMS = tuple(f"fc_norm.{i}.weight" for i in range(MAX_FEATURES))
OUTER = (EMBED, FC, FC_BIAS, NORM, HEAD, INPUT_NORM, D2T, T2D, *FC_NORMS)
# Not the head's: tables that speculators copies from the target for training, and buffers that follow from the config.
IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
IGNORED_IN_LAYER = ("self_attn.rotary_emb.inv_freq",)


def at_layer(layer: int, name: str) -> str:
    return f"layers.{layer}.{name}"


@dataclass(frozen=True, slots=True)
class Names:
    """Canonical name -> source name; `ignored` are recognised and not the head's, `unknown` are neither.

    `twice` are canonical names that two tensors claim; `single` says that the source calls its only layer `midlayer`.
    """

    found: Mapping[str, str]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    twice: tuple[str, ...]
    single: bool

    @property
    def layers(self) -> int:
        """Layers of which a tensor is there."""
        return sum(any(at_layer(i, name) in self.found for name in LAYER) for i in range(MAX_LAYERS))


def _spellings(canonical: str) -> Iterator[str]:
    yield canonical
    if canonical in AUX_NORM_ALIASES:
        yield AUX_NORM_ALIASES[canonical]


def _layer_spellings(layer: int, name: str) -> Iterator[str]:
    yield at_layer(layer, name)
    yield f"{MIDLAYER}{layer}.{name}"  # ModelOpt's deep heads, which SGLang would drop
    if layer == 0:
        yield MIDLAYER + name


def canonical_names(names: Iterable[str]) -> Names:
    """Sort the names of a source."""
    present = list(names)
    table: dict[str, str] = {}
    ignored: set[str] = set()
    for lead in LEADING:
        table |= {lead + spelling: name for name in OUTER for spelling in _spellings(name)}
        ignored |= {lead + name for name in IGNORED}
        for layer in range(MAX_LAYERS):
            table |= {lead + s: at_layer(layer, name) for name in LAYER for s in _layer_spellings(layer, name)}
            ignored |= {lead + s for name in IGNORED_IN_LAYER for s in _layer_spellings(layer, name)}
    found: dict[str, str] = {}
    twice: list[str] = []
    for name in present:
        if name not in table:
            continue
        if table[name] in found:
            twice.append(f"{found[table[name]]} and {name}")
        found[table[name]] = name
    unknown = [n for n in present if n not in table and n not in ignored and n.split(".")[0] != TARGET_COPY]
    others = tuple(n for n in present if n not in table and n not in unknown)
    single = any(lead + MIDLAYER + POST_NORM in present for lead in LEADING)
    return Names(found, others, tuple(unknown), tuple(twice), single)


def expected_shapes(spec: DraftSpec) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """(required, optional) canonical tensors of an EAGLE head with their shapes, by what its config says."""
    h, wide = spec.hidden_size, spec.target_hidden_size
    three = spec.kind == EAGLE3
    required: dict[str, Shape] = {FC: (h, (spec.aux_count * wide) if three else 2 * h)}
    optional: dict[str, Shape] = {FC_BIAS: (h,)}
    embedding, head = (spec.vocab_size, h), (spec.draft_vocab_size, h)
    if three:
        required[NORM] = (h,)
        (required if h != wide else optional)[EMBED] = embedding
        own_head = not spec.tied and not spec.borrows_head
        (required if own_head else optional)[HEAD] = head
        (required if spec.draft_vocab_size < spec.vocab_size else optional)[D2T] = (spec.draft_vocab_size,)
        optional[T2D] = (spec.vocab_size,)
        if spec.norms.before_fc:
            required[INPUT_NORM] = (spec.aux_count * wide,)
        if spec.norms.fc:
            required |= {f"fc_norm.{i}.weight": (wide,) for i in range(spec.aux_count)}
        if spec.qkv_bias:
            optional |= {at_layer(layer, O_BIAS): (h,) for layer in range(spec.num_layers)}
    else:
        optional |= {EMBED: embedding, HEAD: head}
    for layer in range(spec.num_layers):
        required |= {at_layer(layer, name): shape for name, shape in _layer(spec, layer).items()}
    return required, optional


def _layer(spec: DraftSpec, layer: int) -> dict[str, Shape]:
    h, f = spec.hidden_size, spec.intermediate_size
    three = spec.kind == EAGLE3
    width = 2 * h if three and layer == 0 else h
    shapes = _latent_attention(spec, width) if spec.mla else _attention(spec, width)
    shapes |= {"mlp.gate_proj.weight": (f, h), "mlp.up_proj.weight": (f, h), "mlp.down_proj.weight": (h, f)}
    shapes[POST_NORM] = (h,)
    if three or layer:
        shapes[LAYER_NORM] = (h,)
    if three:
        shapes[HIDDEN_NORM] = (h,)
    return shapes


def _attention(spec: DraftSpec, width: int) -> dict[str, Shape]:
    q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (spec.hidden_size, q),
    }
    if spec.qkv_bias:
        shapes |= dict(zip(QKV_BIAS, ((q,), (kv,), (kv,)), strict=True))
    if spec.qk_norm:
        shapes |= dict.fromkeys(QK_NORM, (spec.head_dim,))
    return shapes


def _latent_attention(spec: DraftSpec, width: int) -> dict[str, Shape]:
    m, heads = spec.mla, spec.num_attention_heads
    assert m is not None and m.q_lora_rank is not None
    return {
        "self_attn.q_a_proj.weight": (m.q_lora_rank, width),
        "self_attn.q_a_layernorm.weight": (m.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * (m.qk_nope_head_dim + m.qk_rope_head_dim), m.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (m.kv_lora_rank + m.qk_rope_head_dim, width),
        "self_attn.kv_a_layernorm.weight": (m.kv_lora_rank,),
        "self_attn.kv_b_proj.weight": (heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank),
        "self_attn.o_proj.weight": (spec.hidden_size, heads * m.v_head_dim),
    }
