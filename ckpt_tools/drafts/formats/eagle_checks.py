"""A head by itself: is every tensor there that its config asks for, and nothing else, each of the right shape?"""

from __future__ import annotations

from dataclasses import dataclass

from ...families.config import Fields
from ...report import Report, listed
from ..spec import D2T, EAGLE, EMBED, FC, HEAD, DraftSpec
from .base import AUX_IDS, DRAFT_VOCAB, NUM_AUX, TARGET_HIDDEN, USE_AUX, Flat, eagle_config
from .containers import Container
from .eagle_names import FC_NORMS, INPUT_NORM, LAYER_NORM, Names, at_layer, expected_shapes

NORM_FLAGS = ((INPUT_NORM, "norm_before_fc"), ("fc_norm.0.weight", "fc_norm"))


@dataclass(slots=True)
class Reading:
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


def check(r: Reading, spec: DraftSpec) -> None:
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


def _check_names(r: Reading, spec: DraftSpec, known: set[str]) -> None:
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


def _check_absent(r: Reading, spec: DraftSpec, absent: list[str]) -> None:
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


def _norm_flag(r: Reading, flag: str, there: str, not_there: str) -> None:
    r.report.error(
        "norm-flag",
        f"{there} and {not_there}",
        where=r.head.where,
        expected="flag and tensor together, or neither",
        actual=f"{there}, {not_there}",
        fix=f"set {flag} as the head was trained",
    )
