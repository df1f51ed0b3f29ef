"""Completeness: the tensors that a table enumerates against those that a store holds. Set equality, not warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .mapping.detect import Detected
from .mapping.rules import Naming, State, Table, hf_shapes, megatron_shapes, state_keys
from .report import Report, listed
from .stores.base import Tensor
from .stores.hf_folder import HfFolder
from .stores.torch_dist.metadata import Entry
from .stores.torch_dist.reader import TorchDist

Shape = tuple[int, ...]
MTP_LAYERS, MTP_UNMAPPED = ("mtp", "layers"), "mtp-unmapped"
NARROW = ("BF16", "F16")


def check_hf(
    folder: HfFolder,
    table: Table,
    expected: Mapping[str, Shape],
    family: str,
    mtp: int,
    scales: set[str],
    towers: tuple[tuple[str, ...], ...],
) -> list[str]:
    """Report missing, extra and mis-shaped tensors; returns the names that belong to other towers (vision, audio).

    `expected` are the shapes of the table's own tensors (`hf_shapes`).
    """
    where, report, tensors = str(folder.root), folder.report, folder.tensors
    duplicates = {d.hf: expected[d.of] for d in table.duplicates}
    missing = [name for name in expected if name not in tensors]
    others = tensors.keys() - expected.keys() - duplicates.keys() - scales - set(table.recomputed)
    apart = [name for name in tensors if name in others and in_tower(name, towers)] if others else []
    if missing == ["lm_head.weight"]:
        report.error(
            "lm-head-missing",
            "the config says that embedding and head are not tied, and there is no lm_head.weight",
            where=where,
            expected="lm_head.weight, or tie_word_embeddings true",
            actual="tie_word_embeddings false, no lm_head.weight",
            fix="fetch the checkpoint again; if the model is tied, correct config.json",
        )
    elif missing:
        _missing(report, missing, where, _named(family, mtp))
    if extra := sorted(others - set(apart)):
        _extra(report, extra, where, _named(family, mtp))
    _check_rounded(report, where, tensors, hf_shapes(_pinned(table)))
    if dropped := [name for name in table.recomputed if name in tensors]:
        report.note(
            "buffers-recomputed",
            f"{len(dropped)} rotary buffers follow from the config and are not copied",
            where=where,
        )
    for shapes in (expected, duplicates):
        for name, shape in shapes.items():
            if name in tensors and tensors[name].shape != shape:
                shape_differs(report, name, where, shape, tensors[name].shape)
    return apart


def _pinned(table: Table) -> Table:
    """The rules whose tensors no option may cast."""
    return Table(tuple(rule for rule in table.rules if rule.keep_dtype))


def in_tower(name: str, towers: Iterable[tuple[str, ...]]) -> bool:
    """Whether a name's leading segments are those of another tower."""
    segments = tuple(name.split("."))
    return any(segments[: len(root)] == root for root in towers)


def check_megatron(store: TorchDist, table: Table, detected: Detected, family: str, mtp: int) -> None:
    """Report mixed naming, missing, extra and mis-shaped tensors. Other spellings of a tensor may be there as well."""
    report, where, keys = store.report, str(store.root), store.model_keys
    for kind, values in detected.mixed.items():
        report.error(
            f"{kind}-naming-mixed",
            f"the checkpoint mixes two ways of naming ({kind})",
            where=where,
            expected="one of them throughout",
            actual=", ".join(f"{value}: {example}" for value, example in values.items()),
            fix="two tools wrote into one directory; save the checkpoint again",
        )
    expected: dict[str, Shape] = {}
    for rule in table.rules:
        expected |= megatron_shapes(rule, detected.naming.template(rule))
    aliases = alias_names(table, detected.naming)
    if missing := [name for name in expected if name not in keys]:
        _missing(report, missing, where, _named(family, mtp))
    extra = sorted(keys - expected.keys() - aliases.keys())
    known = _mtp_numbers(table)
    heads = [name for name in extra if in_tower(name, (MTP_LAYERS,)) and (*name.split("."), "")[2] not in known]
    if heads:
        report.error(
            MTP_UNMAPPED,
            f"{len(heads)} tensors are of MTP layers for which {family} has no names in Hugging Face",
            where=where,
            expected=f"MTP layers {listed(sorted(known)) or 'of a family whose releases have them'}",
            actual=listed(heads),
            fix="--mtp drop leaves MTP layers out; nobody would load them under names of our own",
        )
    if strangers := sorted(set(extra) - set(heads)):
        _extra(report, strangers, where, _named(family, mtp))
    for name, shape in expected.items():
        if name in keys and store.contents.tensors[name].shape != shape:
            shape_differs(report, name, where, shape, store.contents.tensors[name].shape)
    pinned = (megatron_shapes(rule, detected.naming.template(rule)) for rule in _pinned(table).rules)
    _check_rounded(report, where, store.contents.tensors, (name for names in pinned for name in names))
    _check_aliases(store, aliases)
    _check_states(store, table, detected.naming.stacked)
    if store.training_keys:
        report.note(
            "training-state",
            f"{len(store.training_keys)} optimizer, RNG and scheduler entries are left where they are",
            where=where,
        )


def _mtp_numbers(table: Table) -> set[str]:
    """The numbers of the MTP layers that the table holds."""
    return {str(number) for rule in table.rules for axis in rule.axes if axis.name == "mtp" for number in axis.megatron}


def _check_rounded(report: Report, where: str, tensors: Mapping[str, Tensor | Entry], names: Iterable[str]) -> None:
    """Every release stores the router's selection bias in float32; a rounded one chooses other experts."""
    if rounded := [name for name in names if name in tensors and tensors[name].dtype in NARROW]:
        report.warn(
            "router-bias-rounded",
            "the router's selection bias is stored in 16 bits: experts may be chosen otherwise than by the original",
            where=where,
            expected="F32",
            actual=listed(rounded),
            fix="values are kept as they are; if a tool rounded them, take the bias of the original release",
        )


def alias_names(table: Table, naming: Naming) -> dict[str, str]:
    """Other spellings under which the same tensors may be stored as well -> the spelling that is read."""
    found: dict[str, str] = {}
    for rule in table.rules:
        own = list(megatron_shapes(rule, naming.template(rule)))
        for template in naming.aliases(rule):
            found |= dict(zip(megatron_shapes(rule, template), own, strict=True))
    return found


def _check_aliases(store: TorchDist, aliases: Mapping[str, str]) -> None:
    """Two spellings of one tensor in one checkpoint must share their bytes, as our writer makes them."""
    tensors = store.contents.tensors
    for alias, name in aliases.items():
        if alias in tensors and name in tensors and _frames(tensors[alias]) != _frames(tensors[name]):
            store.report.error(
                "spelling-twice",
                "one tensor is stored under two names with bytes of their own",
                where=str(store.root),
                expected="one of them, or two names for the same bytes",
                actual=f"{name} and {alias}",
                fix="remove the stale one; nothing tells which was trained",
            )


def _frames(entry: Entry) -> set[object]:
    return {box.stored for box in entry.boxes}


def _check_states(store: TorchDist, table: Table, stacked: bool) -> None:
    """A module whose `_extra_state` is stored for some layers only lost the others: strict Megatron refuses to load it."""
    absent: list[str] = []
    for state in table.states:
        for spelling in state.spellings:
            keys = state_keys(Table((), (State((spelling,), state.axes),)), Naming(stacked))
            gone = [key for key in keys if key not in store.contents.objects]
            absent += gone if len(gone) < len(keys) else []
    if absent:
        store.report.note(
            "extra-state-partial",
            f"{len(absent)} _extra_state objects are not there, of modules that have them in other layers",
            where=str(store.root),
            expected="one per layer, or none",
            actual=f"absent: {listed(absent)}",
            fix="the weights are complete; where Megatron insists, convert to Hugging Face and back",
        )


def _named(family: str, mtp: int) -> str:
    return f"{family} with {mtp} MTP layers"


def _missing(report: Report, names: list[str], where: str, what: str) -> None:
    report.error(
        "tensors-missing",
        f"{len(names)} tensors are missing",
        where=where,
        expected=f"every tensor of {what}",
        actual=f"absent: {listed(names)}",
        fix="the checkpoint is incomplete, or its config belongs to another model",
    )


def _extra(report: Report, names: list[str], where: str, what: str) -> None:
    report.error(
        "tensors-unmapped",
        f"{len(names)} tensors have no place in the table of {what}",
        where=where,
        expected="only the tensors that the config enumerates",
        actual=listed(names),
        fix="the config belongs to another model, or the family needs a rule; nothing is dropped silently",
    )


def shape_differs(report: Report, name: str, where: str, expected: Shape, actual: Shape) -> None:
    report.error(
        "shape",
        f"{name} has another shape than the config says",
        where=where,
        expected=str(list(expected)),
        actual=str(list(actual)),
        fix="the config belongs to another model, or the tensor was changed",
    )
