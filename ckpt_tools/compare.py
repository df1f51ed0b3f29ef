"""The same logical tensors? Across formats and shardings, tensor by tensor, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, product
from statistics import median
from typing import Any

from .difference import difference_of, max_difference
from .engine.codecs import DecodedView, Stored, stored_matrix
from .engine.files import Handles
from .engine.moves import Located, Move, Scale, Side, box_moves, link
from .engine.view import View, handles_for
from .errors import Finding
from .mapping.rules import Bound, decoded_rows, stored_shape
from .model import Model, rows_of
from .quantised import logical_dtype
from .stores.base import Chunk, Tensor
from .stores.dtypes import FLOATS
from .stores.torch_dist.reader import TorchDist, locate

EXACT = "F32"
MTP = "mtp"
Place = Mapping[str, int]  # {"layer": 3, "expert": 17}; {"mtp": 0}; nothing for embedding, head and final norm


@dataclass(frozen=True, slots=True)
class Difference:
    """`status` is "differs", "shape", "missing in A" or "missing in B"; `max_abs` only where numbers differ.

    `relative` is |a - b| / |a| over the whole tensor (Euclidean norms); None where it means nothing.
    """

    name: str
    status: str
    a: str = ""
    b: str = ""
    max_abs: float | None = None
    relative: float | None = None


@dataclass(slots=True)
class Comparison:
    """`equal` counts bit-equal tensors, `equal_values` those whose values agree in different dtypes.

    `body_change` and `mtp_change` are medians of the tensors' relative change, equal ones counting 0; None without tensors
    that both hold. `frozen` are tensors outside of layers, and MTP layers, that did not move where the body did.
    """

    equal: int = 0
    equal_values: int = 0
    differences: list[Difference] = field(default_factory=list)
    mtp_tensors: int = 0
    mtp_equal: int = 0
    body_equal: int = 0
    body_tensors: int = 0
    body_change: float | None = None
    mtp_change: float | None = None
    frozen: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return not self.differences

    @property
    def mtp_unmoved(self) -> bool:
        """The body moved and the MTP head is bit-equal: it was left frozen, or an old copy was exported."""
        return self.mtp_tensors > 0 and self.mtp_equal == self.mtp_tensors and self.body_equal < self.body_tensors


class Logical:
    """The Hugging Face tensors of a model as views, whatever the format underneath.

    `exact`: quantised weights in float32, as products before they are rounded, instead of in bfloat16.
    """

    def __init__(self, model: Model, mtp: int | None = None, exact: bool = False) -> None:
        table = model.table_with(model.mtp if mtp is None else mtp, model.stored_vocab)
        rows = rows_of(model, table)
        store = model.store
        if isinstance(store, TorchDist):
            locate(store, {slot.name for row in rows for slot in row.wholes})
            self.tensors, moves = _from_megatron(model, decoded_rows(rows))
        else:
            names = {slot.name for row in rows if row.rule.codec is None for slot in row.hf}
            dtypes = {name: logical_dtype(store.tensors[name], model.scales) for name in names}
            dtypes |= {name: EXACT for name in names if exact and name in model.scales}
            self.tensors = {name: store.tensors[name]._replace(dtype=dtypes[name]) for name in names}
            moves = {name: _own(store.tensors[name], dtypes[name], model.scales.get(name)) for name in names}
        self.moves: dict[str, list[Move]] = moves
        self.places = places(rows)
        self.mtp_names = {name for name, place in self.places.items() if MTP in place}
        self.handles = handles_for(store.files)
        self.decoded = {} if isinstance(store, TorchDist) else _decoded_views(rows, store.tensors, self.handles)
        self.tensors |= {name: view.tensor for name, view in self.decoded.items()}

    def view(self, name: str) -> View:
        return self.decoded.get(name) or View(self.tensors[name], self.moves[name], self.handles)

    def close(self) -> None:
        self.handles.close()


def _decoded_views(rows: list[Bound], tensors: dict[str, Tensor], handles: Handles) -> dict[str, View]:
    """Views of encoded parts under their plain names."""
    coded = [row for row in rows if row.rule.codec is not None]
    matrices: dict[str, list[Stored]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for row, plain in zip(coded, decoded_rows(coded), strict=True):
        matrices.setdefault(plain.hf[0].name, []).append(stored_matrix(row, tensors))
        shapes[plain.hf[0].name] = row.rule.shapes[0]
    return {name: DecodedView(name, found, shapes[name], handles) for name, found in matrices.items()}


def _own(tensor: Tensor, dtype: str, scale: Scale | None = None) -> list[Move]:
    """A stored tensor as moves to offset 0 of itself in `dtype`, dequantised if it has scales."""
    origin = (0,) * len(tensor.shape)
    here = Located(list(tensor.chunks), tensor.dtype, scale)
    there = Located([Chunk(0, 0, origin, tensor.shape)], dtype)
    return list(box_moves((here, origin), (there, origin), tensor.shape))


def _from_megatron(model: Model, rows: list[Any]) -> tuple[dict[str, Tensor], dict[str, list[Move]]]:
    """Virtual Hugging Face tensors: each is a file of its own, numbered, so that moves can be told apart."""
    tensors: dict[str, Tensor] = {}
    for row in rows:
        stored = model.store.tensors[row.wholes[0].name].dtype
        for slot, template, logical in zip(row.hf, row.rule.hf, row.rule.shapes, strict=True):
            if slot.name not in tensors:
                shape = stored_shape(template, row.rule.axes, logical, hf=True)
                chunk = Chunk(len(tensors), 0, (0,) * len(shape), shape)
                dtype = model.reference.dtypes.get(slot.name, stored) if row.rule.shift else stored
                tensors[slot.name] = Tensor(slot.name, dtype, shape, (chunk,))
    names = list(tensors)
    moves: dict[str, list[Move]] = {name: [] for name in names}
    for move in link(rows, Side(tensors), Side(model.store.tensors), to_megatron=False):
        moves[names[move.target_file]].append(move)
    return tensors, moves


def compare(a: Model, b: Model, progress: Callable[[int], None] | None = None) -> Comparison:
    """Compare two models tensor by tensor under their Hugging Face names."""
    left, right = Logical(a), Logical(b)
    try:
        return compare_logical(left, right, progress)
    finally:
        left.close()
        right.close()


def compare_logical(
    left: Logical, right: Logical, progress: Callable[[int], None] | None = None, rounded: bool = False
) -> Comparison:
    """With `rounded`, values of the left are rounded to the right's dtype first, as a conversion rounds them."""
    found = Comparison()
    moved: dict[str, float] = {}
    for name in sorted(left.tensors.keys() | right.tensors.keys()):
        mtp = name in left.mtp_names or name in right.mtp_names
        found.mtp_tensors += mtp
        found.body_tensors += not mtp
        difference = _difference(name, left, right, rounded)
        if difference is None:
            same_dtype = left.tensors[name].dtype == right.tensors[name].dtype
            found.equal += same_dtype
            found.equal_values += not same_dtype
            found.mtp_equal += mtp
            found.body_equal += not mtp
            moved[name] = 0.0
        else:
            found.differences.append(difference)
            if difference.relative is not None:
                moved[name] = difference.relative
        if progress is not None and name in left.tensors:
            progress(left.tensors[name].nbytes)
    found.body_change = _median(moved[name] for name in moved if name not in left.mtp_names)
    found.mtp_change = _median(moved[name] for name in moved if name in left.mtp_names)
    if found.body_equal < found.body_tensors:
        found.frozen = _frozen(left.places, moved)
    return found


def _median(values: Iterable[float]) -> float | None:
    every = list(values)
    return median(every) if every else None


def _frozen(places: Mapping[str, Place], moved: Mapping[str, float]) -> list[str]:
    """Names outside of layers whose tensors did not move, and MTP layers of which none did."""
    outside = [name for name, change in moved.items() if not change and not places[name]]
    layers: dict[int, list[float]] = {}
    for name, change in moved.items():
        if MTP in places[name]:
            layers.setdefault(places[name][MTP], []).append(change)
    return outside + [f"MTP layer {number}" for number, changes in sorted(layers.items()) if not any(changes)]


def places(rows: list[Bound]) -> dict[str, Place]:
    """Where every Hugging Face tensor belongs: its layer, expert and MTP layer, as far as its name says."""
    found: dict[str, Place] = {}
    for _, group in groupby(zip(rows, decoded_rows(rows), strict=True), key=lambda both: id(both[0].rule)):
        each = list(group)
        axes = each[0][0].rule.axes
        values = (axis.megatron if axis.name == MTP else axis.hf_values for axis in axes)
        for (_, row), place in zip(each, product(*values), strict=True):
            named = dict(zip((axis.name for axis in axes), place, strict=True))
            for slot in row.hf:
                before = found.get(slot.name, named)
                found[slot.name] = {
                    name: n for name, n in named.items() if before.get(name) == n
                }  # packed: of all experts
    return found


def _difference(name: str, left: Logical, right: Logical, rounded: bool) -> Difference | None:
    if name not in left.tensors or name not in right.tensors:
        return Difference(name, "missing in B" if name in left.tensors else "missing in A")
    a, b = left.tensors[name], right.tensors[name]
    here, there = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (a, b))
    if a.shape != b.shape:
        return Difference(name, "shape", here, there)
    if a.dtype != b.dtype and not (a.dtype in FLOATS and b.dtype in FLOATS):
        return Difference(name, "differs", here, there)
    delta = difference_of(left.view(name), right.view(name), rounded)
    return None if delta is None else Difference(name, "differs", here, there, delta.max_abs, delta.relative)


def duplicate_difference(model: Model, name: str, original: str) -> float | None:
    """How a stored duplicate (a tied model's lm_head) differs from its original in value; None if it does not."""
    tensors, handles = model.store.tensors, handles_for(model.store.files)
    views = []
    for key in (name, original):
        dtype = logical_dtype(tensors[key], model.scales)
        moves = _own(tensors[key], dtype, model.scales.get(key))
        views.append(View(tensors[key]._replace(dtype=dtype), moves, handles))
    try:
        return max_difference(views[0], views[1])
    finally:
        handles.close()


TIED_HEAD = "lm_head.weight"


def duplicate_finding(name: str, original: str, worst: float, where: str) -> Finding:
    """What is wrong with a stored duplicate that differs from its original by `worst`."""
    if name == TIED_HEAD:
        return Finding(
            "tie-conflict",
            f"the config ties {name} to {original}, and they differ",
            where=where,
            expected="equal tensors, or tie_word_embeddings false",
            actual=f"max |difference| {worst:g}",
            fix="if the head is a real one, set tie_word_embeddings to false in config.json",
        )
    return Finding(
        "copy-differs",
        f"{name} is stored as a copy of {original}, and they differ",
        where=where,
        expected="equal tensors",
        actual=f"max |difference| {worst:g}",
        fix="`convert --duplicates keep-main` takes the main one; servers never read the copy",
    )
