"""Reading an EAGLE or EAGLE-3 head of any source format: names, dimensions, and whether they agree."""

from __future__ import annotations

from dataclasses import replace

from ...families.config import Fields
from ...families.dims import Mla
from ...families.reading import LLAMA_ROPE_THETA, read_head_dim, read_rope
from ...report import Report
from ..spec import D2T, EAGLE, EAGLE3, EMBED, FC, HEAD, T2D, DraftSpec, plain
from .base import DRAFT_VOCAB, NUM_AUX, TARGET_HIDDEN, Format
from .containers import Container
from .eagle_checks import Reading, check
from .eagle_names import (
    HIDDEN_NORM,
    QK_NORM,
    QKV_BIAS,
    Names,
    at_layer,
    canonical_names,
)
from .packed import refuse_packed

FEATURES = 3  # what SGLang takes where nothing says otherwise
K_PROJ, Q_A_PROJ = at_layer(0, "self_attn.k_proj.weight"), at_layer(0, "self_attn.q_a_proj.weight")


def is_eagle(names: Names) -> bool:
    """Whether there is an EAGLE head's joint projection, or the second input norm of an EAGLE-3 layer."""
    return FC in names.found or at_layer(0, HIDDEN_NORM) in names.found


def read_eagle(container: Container, form: Format) -> DraftSpec:
    report = Report(list(container.findings))
    flat = form.flatten(container, report)
    where = str(container.config_path)
    names = canonical_names(container.tensors)
    reading = Reading(
        container, flat, names, Fields(flat.layer, where, report), Fields(flat.head, where, report), report
    )
    spec = _spec(reading, form.name)
    if not report.errors and not _packed(reading, spec):  # a config that cannot be read would fail every shape
        check(reading, spec)
    return replace(spec, findings=tuple(report.findings))


def _spec(r: Reading, form: str) -> DraftSpec:
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


def _packed(r: Reading, spec: DraftSpec) -> bool:
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


def _kv_heads(r: Reading, heads: int, head_dim: int) -> int:
    """Configs before transformers 4.31 do not know grouped attention; the projection itself says how many there are."""
    if r.layer.has("num_key_value_heads"):
        return r.layer.size("num_key_value_heads")
    rows = r.shape(K_PROJ)
    return max(1, rows[0] // head_dim) if rows else heads


def _layers(r: Reading) -> int:
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


def _aux_count(r: Reading) -> int:
    """How many features `fc` takes: stated, or one per aux layer, or SGLang's three."""
    if r.head.has(NUM_AUX):
        return r.head.size(NUM_AUX)
    return len(r.flat.aux) if r.flat.aux else FEATURES


def _target_hidden(r: Reading, hidden: int, count: int) -> int:
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


def _draft_vocab(r: Reading, vocab: int) -> tuple[int, bool]:
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
