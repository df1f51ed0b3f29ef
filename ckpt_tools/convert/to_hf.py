"""Planning torch-dist -> HF: every tensor of the original layout, whatever the parallel layout it was trained in."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.codecs import encode_tasks
from ..engine.moves import Move, Side, link, paired
from ..engine.program import Program, Quantise
from ..errors import CkptError, UsageProblem, error
from ..mapping.arrangement import Shape
from ..mapping.detect import LAYERS
from ..mapping.rules import Bound, Slot, Table, stored_shape
from ..model import Model, rows_of
from ..quantised import quantisation
from ..reference import BLOCK_SCALE
from ..report import Report
from ..stores import hf_folder
from ..stores.base import Chunk, Image, Tensor
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
    megatron = Side(model.store.tensors)
    rows += _repeated(rows, table, duplicates)
    tensors: dict[str, tuple[str, str, Shape]] = {}
    for row in rows:
        for slot, template, shape in zip(row.hf, *zip(*row.rule.hf_stored, strict=True), strict=True):
            dtype = _dtype(model, row, slot, options)
            tensors[slot.name] = (slot.name, dtype, stored_shape(template, row.rule.axes, shape, hf=True))
    block = _block(model, options)
    quantised = {name for name in tensors if name in model.reference.quantised} if options.quantize else set()
    for name in quantised:
        tensors |= _float8(*tensors[name], block)
    rest = rest_of(model, options)
    if rest:
        tensors |= {name: (name, dtype, shape) for name, dtype, shape in entries(rest)}
    ordered = [tensors[name] for name in sorted(tensors, key=natural_order)]
    image = hf_folder.lay_out(ordered, options.max_shard_size, _offsets(rows, megatron))
    virtual = _virtual(quantised, image)
    linked = link(rows, Side({**image.tensors, **virtual}), megatron, to_megatron=False)
    moves, apart = _sorted_out(linked, len(image.files), len(virtual))
    tasks = [_task(tensor, moves_of, image, block) for tensor, moves_of in zip(virtual.values(), apart, strict=True)]
    sources = list(model.store.files)
    if rest:
        moves += copies(rest, image, len(sources))
        sources += rest.files
    coded = encode_tasks(rows, image, megatron)
    program = Program(sources, image, moves, [*tasks, *coded])
    program.check(0)
    kind = STACKED if model.naming.stacked else PER_LAYER
    return Plan(program, table, mtp, kind, model.stored_vocab, {}, len(rest.tensors) if rest else 0)


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


def _block(model: Model, options: Options) -> tuple[int, int]:
    """Rows and columns of a block to quantise in; (0, 0) if nothing is to be quantised."""
    if not options.quantize:
        return (0, 0)
    scheme = quantisation(model.config) or {}
    block = scheme.get("weight_block_size")
    if not model.reference.quantised or not isinstance(block, list) or len(block) != 2:
        raise error(
            CkptError,
            "quantise-like-what",
            "--quantize fp8 repeats the original's block quantisation, and the original has none",
            where=str(model.config_path),
            expected="weight_block_size in quantization_config, and weights with *_scale_inv in the original's headers",
            actual=f"weight_block_size {block}, {len(model.reference.quantised)} scaled weights",
            fix="name the fp8 release's folder with --hf-config, or leave --quantize out",
        )
    return (int(block[0]), int(block[1]))


def _float8(name: str, _: str, shape: Shape, block: tuple[int, int]) -> dict[str, tuple[str, str, Shape]]:
    """The two tensors that a quantised matrix is stored as."""
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    scale = name + BLOCK_SCALE
    return {name: (name, "F8_E4M3", shape), scale: (scale, "F32", grid)}


def _virtual(quantised: set[str], image: Image) -> dict[str, Tensor]:
    """bfloat16 stand-ins for matrices that are quantised on the way, each a file of its own after the real ones."""
    first = len(image.files)
    return {
        name: Tensor(name, "BF16", shape, (Chunk(first + i, 0, (0,) * len(shape), shape),))
        for i, name in enumerate(sorted(quantised))
        for shape in (image.tensors[name].shape,)
    }


def _sorted_out(moves: Iterable[Move], files: int, virtual: int) -> tuple[list[Move], list[list[Move]]]:
    """Moves into real files, and those into each stand-in."""
    real: list[Move] = []
    apart: list[list[Move]] = [[] for _ in range(virtual)]
    for move in moves:
        (real if move.target_file < files else apart[move.target_file - files]).append(move)
    return real, apart


def _task(tensor: Tensor, moves: list[Move], image: Image, block: tuple[int, int]) -> Quantise:
    weight, scale = (image.tensors[name].chunks[0] for name in (tensor.name, tensor.name + BLOCK_SCALE))
    return Quantise(tensor, moves, weight, scale, block)


def _dtype(model: Model, row: Bound, slot: Slot, options: Options) -> str:
    stored = model.store.tensors[row.wholes[0].name].dtype
    if row.rule.shift:
        return model.reference.dtypes.get(slot.name, stored)
    return target_dtype(row.rule, stored, options.dtype)


def _offsets(rows: list[Bound], megatron: Side) -> dict[str, int]:
    """Where the bytes of every tensor that begins a chunk lie."""
    found: dict[str, int] = {}
    for row, boxes in paired(rows):
        wholes = [{chunk.origin[0]: chunk.offset for chunk in megatron.chunks(slot)} for slot in row.wholes]
        for pair in boxes:
            at = wholes[pair.piece].get(pair.whole_origin[0])
            if at is not None and not any(pair.part_origin) and pair.step == 1:
                found.setdefault(row.hf[pair.part].name, at)
    return found


def _repeated(rows: list[Bound], table: Table, duplicates: set[str]) -> list[Bound]:
    """Rows again under the names of their duplicates."""
    copies_of: dict[str, list[str]] = {}
    for duplicate in table.duplicates:
        if duplicate.hf in duplicates:
            copies_of.setdefault(duplicate.of, []).append(duplicate.hf)
    return [
        row._replace(hf=(Slot(name, ()),)) for row in rows for slot in row.hf for name in copies_of.get(slot.name, ())
    ]
