"""Planning HF -> torch-dist: every Megatron tensor, its dtype, its chunks, its bytes' origin."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ..checks import alias_names
from ..engine.codecs import MXFP4, decode_tasks
from ..engine.moves import Side, link, paired
from ..engine.program import Program
from ..errors import UsageProblem, error
from ..families.arguments import checkpoint_arguments, indivisible, padded_vocabulary
from ..mapping.rules import Bound, Naming, Table, expand, naming_of, stacked_axes, state_keys
from ..model import EMBEDDING, Model
from ..quantised import logical_dtype
from ..report import Report
from ..stores.dtypes import BY_NAME
from ..stores.torch_dist import layout
from .options import PER_LAYER, STACKED, Options
from .plan import Plan, target_dtype
from .rest import carried_image, copies, merged, rest_of

EXACT_SHIFT = "F32"  # w - 1 of a bfloat16 is not always a bfloat16, but always a float32


def plan_megatron(model: Model, mtp: int, options: Options) -> Plan:
    """Raises CkptError and UsageProblem before anything is written."""
    _check_tp(model, options)
    padded = padded_vocabulary(model.dims.vocab_size, options.make_vocab_size_divisible_by, options.tp)
    table = model.table_with(mtp, padded)
    naming = naming_of(table, _stacked(table, model, options), options.variants)
    rows = list(expand(table, naming))
    dtypes = _whole_dtypes(rows, model, options)
    hf = Side(model.store.tensors, model.scales)
    arguments = checkpoint_arguments(model.dims, mtp, padded, options.make_vocab_size_divisible_by, dtypes[EMBEDDING])
    image = layout.lay_out(
        _planned(rows, naming, dtypes),
        state_keys(table, naming),
        layout.common_state(arguments, per_layer=not naming.stacked),
        options.max_shard_size,
        alias_names(table, naming),
        _phases(rows, hf),
    )
    megatron = Side(image.tensors)
    moves = list(link(rows, hf, megatron, to_megatron=True))
    if rest := rest_of(model, options):
        carried = carried_image(rest)
        image = merged(image, carried)
        moves += copies(rest, image, 0)
    apart = list(decode_tasks(rows, model.store.tensors, megatron))
    program = Program(model.store.files, image, moves, [*apart])
    program.check(_padding_bytes(rows, dtypes))
    kind = STACKED if naming.stacked else PER_LAYER
    return Plan(program, table, mtp, kind, padded, _hidden_dtypes(rows, model), len(rest.tensors) if rest else 0)


def _phases(rows: Iterable[Bound], hf: Side) -> layout.Phases:
    """Where the bytes of a Megatron tensor's row come from, for rows whose source is not transformed."""
    found: dict[tuple[str, tuple[int, ...]], list[tuple[int, int, int]]] = {}
    for row, boxes in paired(rows):
        for pair in boxes:
            if row.rule.arrangement.axis or pair.step > 1 or row.rule.codec:
                continue
            slot = row.hf[pair.part]
            (chunk, *_) = hf.chunks(slot)
            row_bytes = prod(chunk.shape[1:]) * hf.tensors[slot.name].itemsize
            offset = chunk.offset + pair.part_origin[0] * row_bytes
            found.setdefault(row.wholes[pair.piece], []).append((pair.whole_origin[0], offset, row_bytes))

    def phase(name: str, index: tuple[int, ...], first: int) -> int | None:
        starts = [entry for entry in found.get((name, index), ()) if entry[0] <= first]
        if not starts:
            return None
        start, offset, row_bytes = max(starts)
        return offset + (first - start) * row_bytes

    return phase


def _planned(rows: Iterable[Bound], naming: Naming, dtypes: dict[str, str]) -> list[layout.Planned]:
    planned: dict[str, layout.Planned] = {}
    for row in rows:
        if row.wholes[0].name in planned:
            continue
        leading = tuple(len(axis.megatron) for axis in stacked_axes(naming.template(row.rule), row.rule.axes, hf=False))
        cuts = () if row.rule.pieces else row.rule.arrangement.cuts
        for slot, (_, shape) in zip(row.wholes, row.rule.stored, strict=True):
            planned[slot.name] = layout.Planned(slot.name, dtypes[row.megatron.name], leading, shape, cuts)
    return list(planned.values())


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
    """As Megatron itself would ask: stacked where all layers are of one kind and no list argument describes them."""
    layers = range(model.dims.num_hidden_layers)
    kinds = [axis.megatron for rule in table.rules for axis in rule.axes if axis.name == "layer"]
    uniform = all(kind == layers for kind in kinds if len(kind))
    if options.layout == STACKED and not uniform:
        raise error(
            UsageProblem,
            "layout-impossible",
            "layers of different kinds cannot be stacked",
            expected="--layout per-layer or auto",
            actual="--layout stacked",
            fix="leave --layout out",
        )
    return uniform and (options.layout == STACKED or (options.layout != PER_LAYER and model.dims.uniform))


def _whole_dtypes(rows: Iterable[Bound], model: Model, options: Options) -> dict[str, str]:
    """The dtype of every Megatron tensor: that of its parts, over all layers stacked into it."""
    seen: dict[str, dict[str, str]] = {}
    for row in rows:
        for slot in row.hf:
            own = logical_dtype(model.store.tensors[slot.name], model.scales)
            if row.rule.codec and row.rule.codec.kind == MXFP4:
                own = "BF16"
            dtype = EXACT_SHIFT if row.rule.shift else target_dtype(row.rule, own, options.dtype)
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


def _hidden_dtypes(rows: Iterable[Bound], model: Model) -> dict[str, str]:
    """Dtypes of shifted tensors, which torch-dist stores in another one."""
    return {slot.name: model.store.tensors[slot.name].dtype for row in rows if row.rule.shift for slot in row.hf}


def _padding_bytes(rows: Iterable[Bound], dtypes: dict[str, str]) -> int:
    total = 0
    for row in rows:
        if padding := row.rule.arrangement.padding:
            columns = row.rule.whole_shape[1]
            total += padding * columns * BY_NAME[dtypes[row.megatron.name]].itemsize
    return total
