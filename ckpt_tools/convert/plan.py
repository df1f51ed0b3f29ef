"""From a model and options to a program: what is written where, decided before a byte is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..engine.moves import Side, link
from ..engine.program import Program
from ..errors import UsageProblem, error
from ..families.arguments import checkpoint_arguments, indivisible, padded_vocabulary
from ..mapping.arrangement import Shape
from ..mapping.detect import LAYERS
from ..mapping.rules import Bound, Rule, Slot, Table, expand, naming_of, stacked_axes, state_keys, stored_shape
from ..model import Model, rows_of
from ..report import Report
from ..stores import hf_folder
from ..stores.base import Image
from ..stores.dtypes import BY_NAME, FLOATS
from ..stores.torch_dist import layout
from ..stores.torch_dist.reader import TorchDist, locate
from .options import AUTO, PER_LAYER, STACKED, Options


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked program and what it was decided from."""

    program: Program
    table: Table
    mtp: int
    layout: str
    padded_vocab: int
    dtype: str


def target_dtype(rule: Rule, source: str, wanted: str | None) -> str:
    """Floating tensors take the dtype asked for, unless their rule pins their own."""
    return wanted if wanted and source in FLOATS and not rule.keep_dtype else source


def plan_megatron(model: Model, mtp: int, options: Options) -> Plan:
    """HF -> torch-dist; raises CkptError and UsageProblem before anything is written."""
    _check_tp(model, options)
    padded = padded_vocabulary(model.dims.vocab_size, options.make_vocab_size_divisible_by, options.tp)
    table = model.table_with(mtp, padded)
    naming = naming_of(table, _stacked(table, model, options), options.variants)
    rows = list(expand(table, naming))
    dtypes = _whole_dtypes(rows, model, options)
    planned: dict[str, layout.Planned] = {}
    for row in rows:
        if row.wholes[0].name in planned:
            continue
        leading = tuple(len(axis.megatron) for axis in stacked_axes(naming.template(row.rule), row.rule.axes))
        cuts = () if row.rule.pieces else row.rule.arrangement.cuts
        for slot, (_, shape) in zip(row.wholes, row.rule.stored, strict=True):
            planned[slot.name] = layout.Planned(slot.name, dtypes[row.megatron.name], leading, shape, cuts)
    main = dtypes["embedding.word_embeddings.weight"]
    arguments = checkpoint_arguments(model.dims, mtp, padded, options.make_vocab_size_divisible_by, main)
    common = layout.common_state(arguments, per_layer=not naming.stacked)
    image = layout.lay_out(list(planned.values()), state_keys(table, naming), common, options.max_shard_size)
    program = _program(model, image, rows, to_megatron=True)
    program.check(_padding_bytes(rows, dtypes))
    return Plan(program, table, mtp, STACKED if naming.stacked else PER_LAYER, padded, main)


def _check_tp(model: Model, options: Options) -> None:
    if problems := indivisible(model.dims, options.tp):
        raise error(
            UsageProblem,
            "tp-not-divisible",
            f"--tp {options.tp} cannot share this model",
            where=str(model.config_path),
            expected=f"dimensions that {options.tp} ranks divide",
            actual=", ".join(problems),
            fix="choose a tensor-parallel size that divides the heads",
        )


def _stacked(table: Table, model: Model, options: Options) -> bool:
    """Megatron stacks layers of one kind; per-layer keys are asked for by models whose layers differ."""
    layers = range(model.dims.num_hidden_layers)
    uniform = all(axis.megatron == layers for rule in table.rules for axis in rule.axes if axis.name == "layer")
    if options.layout == STACKED and not uniform:
        raise error(
            UsageProblem,
            "layout-impossible",
            "layers of different kinds cannot be stacked",
            expected="--layout per-layer or auto",
            actual="--layout stacked",
            fix="leave --layout out",
        )
    return uniform and options.layout != PER_LAYER


def _whole_dtypes(rows: Iterable[Bound], model: Model, options: Options) -> dict[str, str]:
    """The dtype of every Megatron tensor: that of its parts, over all layers stacked into it."""
    seen: dict[str, dict[str, str]] = {}
    for row in rows:
        for slot in row.hf:
            dtype = target_dtype(row.rule, model.store.tensors[slot.name].dtype, options.dtype)
            seen.setdefault(row.megatron.name, {}).setdefault(dtype, slot.name)
    report = Report()
    for name, found in seen.items():
        if len(found) > 1:
            report.error(
                "dtype-mixed",
                f"the parts of {name} have different dtypes",
                where=str(model.store.root),
                expected="one dtype",
                actual=", ".join(f"{dtype}: {example}" for dtype, example in found.items()),
                fix="--layout per-layer if layers differ from each other, or --dtype to cast",
            )
    report.raise_errors()
    return {name: next(iter(found)) for name, found in seen.items()}


def _program(model: Model, image: Image, rows: list[Bound], to_megatron: bool) -> Program:
    here, there = Side(model.store.tensors), Side(image.tensors)
    hf, megatron = (here, there) if to_megatron else (there, here)
    return Program(model.store.files, image, list(link(rows, hf, megatron, to_megatron)))


def _padding_bytes(rows: Iterable[Bound], dtypes: dict[str, str]) -> int:
    total = 0
    for row in rows:
        if padding := row.rule.arrangement.padding:
            columns = row.rule.whole_shape[1]
            total += padding * columns * BY_NAME[dtypes[row.megatron.name]].itemsize
    return total


def plan_hf(model: Model, mtp: int, options: Options, duplicates: set[str]) -> Plan:
    """torch-dist -> HF; `duplicates` are the tensors that the original stored twice and that are written twice again."""
    assert isinstance(model.store, TorchDist)
    _check_asked(model, options)
    padded = next(r.whole_shape[0] for r in model.table.rules if r.hf == ("model.embed_tokens.weight",))
    table = model.table_with(mtp, padded)
    rows = rows_of(model, table)
    locate(model.store, {slot.name for row in rows for slot in row.wholes})
    originals = {d.of: d.hf for d in table.duplicates if d.hf in duplicates}
    rows += [
        row._replace(hf=(Slot(originals[slot.name], ()),)) for row in rows for slot in row.hf if slot.name in originals
    ]
    tensors: dict[str, tuple[str, str, Shape]] = {}
    for row in rows:
        dtype = target_dtype(row.rule, model.store.tensors[row.wholes[0].name].dtype, options.dtype)
        for slot, template, shape in zip(row.hf, row.rule.hf, row.rule.shapes, strict=True):
            tensors[slot.name] = (slot.name, dtype, stored_shape(template, row.rule.axes, shape))
    ordered = [tensors[name] for name in sorted(tensors, key=natural_order)]
    image = hf_folder.lay_out(ordered, options.max_shard_size)
    program = _program(model, image, rows, to_megatron=False)
    program.check(0)
    kind = STACKED if model.naming.stacked else PER_LAYER
    return Plan(program, table, mtp, kind, padded, tensors["model.embed_tokens.weight"][1])


def _check_asked(model: Model, options: Options) -> None:
    """Options that choose how torch-dist is written say, on the way back, what the source must hold."""
    asked = options.variants | ({} if options.layout == AUTO else {LAYERS: options.layout})
    seen = model.detected.variants if model.detected else {}
    report = Report()
    for kind, wanted in asked.items():
        if (found := seen.get(kind)) and wanted not in found:
            report.error(
                "variant-differs",
                f"the checkpoint has another kind of {kind} than was asked for",
                where=str(model.store.root),
                expected=wanted,
                actual=", ".join(f"{value}: {example}" for value, example in found.items()),
                fix="leave the option out to read what is there",
            )
    report.raise_errors(UsageProblem)


def natural_order(name: str) -> tuple[tuple[bool, int | str], ...]:
    """Sort key under which layer 10 follows layer 9."""
    return tuple((not piece.isdigit(), int(piece) if piece.isdigit() else piece) for piece in name.split("."))
