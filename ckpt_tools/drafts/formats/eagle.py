"""Reading an EAGLE or EAGLE-3 head of any source format: names, dimensions, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...families.config import Fields
from ...families.dims import Mla
from ...families.reading import LLAMA_ROPE_THETA, read_head_dim, read_rope
from ...report import Report, listed
from ..spec import D2T, EAGLE, EAGLE3, EMBED, FC, HEAD, T2D, DraftSpec, plain
from .base import AUX_IDS, DRAFT_VOCAB, NUM_AUX, TARGET_HIDDEN, USE_AUX, Flat, Format, eagle_config
from .containers import Container
from .eagle_names import (
    FC_NORMS,
    HIDDEN_NORM,
    INPUT_NORM,
    LAYER_NORM,
    QK_NORM,
    QKV_BIAS,
    Names,
    at_layer,
    canonical_names,
    expected_shapes,
)
from .packed import refuse_packed

FEATURES = 3  # what SGLang takes where nothing says otherwise
K_PROJ, Q_A_PROJ = at_layer(0, "self_attn.k_proj.weight"), at_layer(0, "self_attn.q_a_proj.weight")
NORM_FLAGS = ((INPUT_NORM, "norm_before_fc"), ("fc_norm.0.weight", "fc_norm"))


@dataclass(slots=True)
class _Reading:
    """One head while it is read."""

    container: Container
    flat: Flat
    names: Names
    layer: Fields
    head: Fields
    report: Report

    def shape(self, name: str) -> tuple[int, ...]:
        source = self.names.found.get(name)
        return self.container.tensors[source].shape if source else ()

    def has(self, name: str) -> bool:
        return name in self.names.found


def is_eagle(names: Names) -> bool:
    """Whether there is an EAGLE head's joint projection, or the second input norm of an EAGLE-3 layer."""
    return FC in names.found or at_layer(0, HIDDEN_NORM) in names.found


def read_eagle(container: Container, form: Format) -> DraftSpec:
    report = Report(list(container.findings))
    flat = form.flatten(container, report)
    where = str(container.config_path)
    names = canonical_names(container.tensors)
    reading = _Reading(
        container, flat, names, Fields(flat.layer, where, report), Fields(flat.head, where, report), report
    )
    spec = _spec(reading, form.name)
    if not report.errors and not _packed(reading, spec):  # a config that cannot be read would fail every shape
        _check(reading, spec)
    return replace(spec, findings=tuple(report.findings))


def _spec(r: _Reading, form: str) -> DraftSpec:
    kind = EAGLE3 if r.has(at_layer(0, HIDDEN_NORM)) else EAGLE
    mla = _mla(r.layer) if r.has(Q_A_PROJ) else None
    heads, hidden = r.layer.size("num_attention_heads"), r.layer.size("hidden_size")
    head_dim = mla.qk_nope_head_dim if mla else read_head_dim(r.layer, heads)
    vocab = r.layer.size("vocab_size")
    count = _aux_count(r) if kind == EAGLE3 else 0
    draft_vocab, borrows = _draft_vocab(r, vocab) if kind == EAGLE3 else (vocab, False)
    spelled = {name: r.container.tensors[source] for name, source in r.names.found.items()}
    return DraftSpec(
        kind=kind,
        form=form,
        source=r.container.root,
        hidden_size=hidden,
        target_hidden_size=_target_hidden(r, hidden, count) if kind == EAGLE3 else hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads if mla else _kv_heads(r, heads, head_dim),
        head_dim=head_dim,
        intermediate_size=r.layer.size("intermediate_size"),
        num_layers=_layers(r),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        borrows_head=borrows,
        max_position_embeddings=r.layer.value("max_position_embeddings"),
        rope=read_rope(r.layer, LLAMA_ROPE_THETA),
        rms_norm_eps=r.layer.number("rms_norm_eps"),
        config=r.container.config,
        config_path=r.container.config_path,
        tensors={name: plain(name, tensor, r.container.files) for name, tensor in spelled.items()},
        aux=r.flat.aux if kind == EAGLE3 else None,
        aux_count=count,
        norms=r.flat.norms,
        qkv_bias=any(r.has(at_layer(0, name)) for name in QKV_BIAS),
        qk_norm=any(r.has(at_layer(0, name)) for name in QK_NORM),
        tied=kind == EAGLE3 and r.layer.value("tie_word_embeddings") is True and not r.has(HEAD),
        mla=mla,
        verifier=r.flat.verifier,
    )


def _packed(r: _Reading, spec: DraftSpec) -> bool:
    """No quantised EAGLE head is read; vocabulary maps are integers by nature."""
    weights = {e.source: e.tensor for name, e in spec.tensors.items() if name not in (D2T, T2D)}
    modules = [module for name in r.container.tensors if (module := name.rpartition(".")[0])]
    return refuse_packed(r.container, weights, dict.fromkeys(modules), r.report, float8=False)


def _mla(fields: Fields) -> Mla:
    return Mla(
        q_lora_rank=fields.size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        qk_nope_head_dim=fields.size("qk_nope_head_dim"),
        qk_rope_head_dim=fields.size("qk_rope_head_dim"),
        v_head_dim=fields.size("v_head_dim"),
    )


def _kv_heads(r: _Reading, heads: int, head_dim: int) -> int:
    """Configs before transformers 4.31 do not know grouped attention; the projection itself says how many there are."""
    if r.layer.has("num_key_value_heads"):
        return r.layer.size("num_key_value_heads")
    rows = r.shape(K_PROJ)
    return max(1, rows[0] // head_dim) if rows else heads


def _layers(r: _Reading) -> int:
    """`midlayer` is one layer whatever the config repeats from its target; else config and tensors must agree."""
    stated = r.layer.size("num_hidden_layers")
    if stated != r.names.layers and r.names.single:
        r.report.warn(
            "layer-count",
            "the config counts other layers than the head has",
            where=r.layer.where,
            expected=f"num_hidden_layers {r.names.layers}",
            actual=str(stated),
            fix="export-draft writes what is there",
        )
        return r.names.layers
    return stated


def _aux_count(r: _Reading) -> int:
    """How many features `fc` takes: stated, or one per aux layer, or SGLang's three."""
    if r.head.has(NUM_AUX):
        return r.head.size(NUM_AUX)
    return len(r.flat.aux) if r.flat.aux else FEATURES


def _target_hidden(r: _Reading, hidden: int, count: int) -> int:
    if r.head.value(TARGET_HIDDEN) is not None:
        return r.head.size(TARGET_HIDDEN)
    fc = r.shape(FC)
    if len(fc) == 2 and fc[1] != count * hidden and fc[1] % count == 0 and r.has(EMBED):
        r.report.warn(
            "target-hidden-inferred",
            f"the config does not say how wide the target is; fc takes {count} features of {fc[1] // count}",
            where=r.head.where,
            expected=TARGET_HIDDEN,
            actual="absent",
            fix="export-draft writes it",
        )
        return fc[1] // count
    return hidden


def _draft_vocab(r: _Reading, vocab: int) -> tuple[int, bool]:
    """(size of the draft vocabulary, whether the lm_head is the target's). SGLang refuses a config without the key."""
    if DRAFT_VOCAB in r.flat.head and r.flat.head[DRAFT_VOCAB] is None:
        return vocab, True
    if r.head.has(DRAFT_VOCAB):
        return r.head.size(DRAFT_VOCAB), False
    rows = r.shape(D2T) or r.shape(HEAD)
    r.report.warn(
        "draft-vocab-unstated",
        f"the config has no {DRAFT_VOCAB}; the tensors tell",
        where=r.head.where,
        expected=DRAFT_VOCAB,
        actual=f"{rows[0]} rows" if rows else "neither d2t nor lm_head",
        fix="export-draft writes it",
    )
    return (rows[0], False) if rows else (vocab, False)


def _check(r: _Reading, spec: DraftSpec) -> None:
    required, optional = expected_shapes(spec)
    where = r.container.where
    _check_names(r, spec, set(required) | set(optional))
    absent = [name for name in required if name not in spec.tensors]
    _check_absent(r, spec, absent)
    for name, shape in {**required, **optional}.items():
        if name in spec.tensors and spec.tensors[name].shape != shape:
            r.report.error(
                "fc-shape" if name == FC else "shape",
                f"{name} has another shape than the config says",
                where=where,
                expected=str(list(shape)),
                actual=str(list(spec.tensors[name].shape)),
                fix=_fc_fix(spec) if name == FC else "the config belongs to another head",
            )
    for name, flag in NORM_FLAGS:
        if r.has(name) and name not in required:
            _norm_flag(r, flag, f"{name} is stored", f"{flag} is not set")


def _fc_fix(spec: DraftSpec) -> str:
    if spec.kind == EAGLE:
        return "an EAGLE-1/2 head takes the embedding and one feature: its hidden size is the target's"
    return f"state {AUX_IDS} or {NUM_AUX}, and {TARGET_HIDDEN} where the target is wider"


def _check_names(r: _Reading, spec: DraftSpec, known: set[str]) -> None:
    flagged = {name for name, _ in NORM_FLAGS} | set(FC_NORMS)
    extra = [name for name in spec.tensors if name not in known | flagged and not _excused(spec, name)]
    if unknown := sorted((*r.names.unknown, *(r.names.found[name] for name in extra))):
        r.report.error(
            "tensors-unmapped",
            f"{len(unknown)} tensors have no place in an {spec.kind} head",
            where=r.container.where,
            expected="the tensors of the head, nothing else",
            actual=listed(unknown),
            fix="nothing is dropped silently; remove what does not belong to the head",
        )
    if r.names.twice:
        r.report.error(
            "tensor-twice",
            "two tensors have one meaning",
            where=r.container.where,
            expected="every tensor once",
            actual=listed(r.names.twice),
            fix="remove the stale one",
        )
    if r.names.ignored:
        r.report.note(
            "not-the-heads",
            f"{len(r.names.ignored)} tensors are the target's or follow from the config",
            where=r.container.where,
            actual=listed(sorted(r.names.ignored)),
        )


def _excused(spec: DraftSpec, name: str) -> bool:
    """EAGLE-1's first layer has no input norm; some trainers store one that nothing reads."""
    return spec.kind == EAGLE and name == at_layer(0, LAYER_NORM)


def _check_absent(r: _Reading, spec: DraftSpec, absent: list[str]) -> None:
    whole = spec.draft_vocab_size == spec.vocab_size
    special: dict[str, tuple[str, str, str]] = {
        HEAD: (
            "lm-head-missing",
            f"an lm_head of {spec.draft_vocab_size} rows",
            "`export-draft --lm-head-from-target` takes the target's rows"
            + (f", or set {DRAFT_VOCAB} to null: SGLang takes the target's then" if whole else " by d2t"),
        ),
        D2T: (
            "d2t-missing",
            f"d2t, since the draft vocabulary has {spec.draft_vocab_size} of {spec.vocab_size} ids",
            "without it every draft id is taken for a target id; `export-draft --vocab-map FILE` takes the trainer's own list",
        ),
        EMBED: (
            "embed-required",
            f"an embedding of its own: hidden size {spec.hidden_size}, the target's is {spec.target_hidden_size}",
            "export the embedding with the head",
        ),
    }
    for name in absent:
        if name in special:
            code, expected, fix = special[name]
            r.report.error(
                code, f"{name} is not there", where=r.container.where, expected=expected, actual="absent", fix=fix
            )
    for name, flag in NORM_FLAGS:
        if name in absent:
            _norm_flag(r, flag, f"{flag} is set", f"{name} is not there")
    flagged = {INPUT_NORM, *FC_NORMS}
    if others := [name for name in absent if name not in special and name not in flagged]:
        no_features = eagle_config(r.flat.head).get(USE_AUX) is False
        r.report.error(
            "tensors-missing",
            f"{len(others)} tensors are missing",
            where=r.container.where,
            expected=f"every tensor of an {spec.kind} head",
            actual=f"absent: {listed(others)}",
            fix=f"{USE_AUX} false: the head was trained without features, which SGLang cannot serve"
            if no_features and FC in others
            else "the head is incomplete",
        )


def _norm_flag(r: _Reading, flag: str, there: str, not_there: str) -> None:
    r.report.error(
        "norm-flag",
        f"{there} and {not_there}",
        where=r.head.where,
        expected="flag and tensor together, or neither",
        actual=f"{there}, {not_there}",
        fix=f"set {flag} as the head was trained",
    )


def layer_fields(spec: DraftSpec) -> dict[str, Any]:
    """The Llama-like fields of a head's config, at the level where its format keeps them."""
    nested = spec.config.get("transformer_layer_config")
    return dict(nested) if isinstance(nested, dict) else dict(spec.config)
