"""Planning torch-dist -> HF: every tensor of the original layout, whatever the parallel layout it was trained in."""

from __future__ import annotations

from ..engine.moves import Side, link
from ..engine.program import Program
from ..errors import UsageProblem
from ..mapping.arrangement import Shape
from ..mapping.detect import LAYERS
from ..mapping.rules import Bound, Slot, Table, stored_shape
from ..model import Model, rows_of
from ..report import Report
from ..stores import hf_folder
from ..stores.torch_dist.reader import TorchDist, locate
from .options import AUTO, PER_LAYER, STACKED, Options
from .plan import Plan, natural_order, target_dtype
from .rest import copies, entries, rest_of


def plan_hf(model: Model, mtp: int, options: Options, duplicates: set[str]) -> Plan:
    """`duplicates` are the tensors that the original stored twice and that are written twice again."""
    assert isinstance(model.store, TorchDist)
    _check_asked(model, options)
    table = model.table_with(mtp, model.stored_vocab)
    rows = rows_of(model, table)
    locate(model.store, {slot.name for row in rows for slot in row.wholes})
    rows += _repeated(rows, table, duplicates)
    tensors: dict[str, tuple[str, str, Shape]] = {}
    for row in rows:
        for slot, template, shape in zip(row.hf, row.rule.hf, row.rule.shapes, strict=True):
            dtype = _dtype(model, row, slot, options)
            tensors[slot.name] = (slot.name, dtype, stored_shape(template, row.rule.axes, shape, hf=True))
    rest = rest_of(model, options)
    if rest:
        tensors |= {name: (name, dtype, shape) for name, dtype, shape in entries(rest)}
    image = hf_folder.lay_out([tensors[name] for name in sorted(tensors, key=natural_order)], options.max_shard_size)
    moves = list(link(rows, Side(image.tensors), Side(model.store.tensors), to_megatron=False))
    sources = list(model.store.files)
    if rest:
        moves += copies(rest, image, len(sources))
        sources += rest.files
    program = Program(sources, image, moves)
    program.check(0)
    kind = STACKED if model.naming.stacked else PER_LAYER
    return Plan(program, table, mtp, kind, model.stored_vocab, {})


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


def _dtype(model: Model, row: Bound, slot: Slot, options: Options) -> str:
    stored = model.store.tensors[row.wholes[0].name].dtype
    if row.rule.shift:
        return model.reference.dtypes.get(slot.name, stored)
    return target_dtype(row.rule, stored, options.dtype)


def _repeated(rows: list[Bound], table: Table, duplicates: set[str]) -> list[Bound]:
    """Rows again under the names of their duplicates."""
    copies_of: dict[str, list[str]] = {}
    for duplicate in table.duplicates:
        if duplicate.hf in duplicates:
            copies_of.setdefault(duplicate.of, []).append(duplicate.hf)
    return [
        row._replace(hf=(Slot(name, ()),)) for row in rows for slot in row.hf for name in copies_of.get(slot.name, ())
    ]
