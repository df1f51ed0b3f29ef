"""From rows of a table to moves of bytes: boxes of parts and wholes, intersected with the chunks on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ..mapping.arrangement import Block, Shape
from ..mapping.rules import Bound, Rule, Slot
from ..stores.base import Chunk, Tensor, leading_boxes
from ..stores.dtypes import BY_NAME


class Cast(NamedTuple):
    """Element types of a converting move, as safetensors names; `shift` is added to every value."""

    source: str
    target: str
    shift: float = 0.0


class Scale(NamedTuple):
    """Block scales of a quantised matrix: scale `[i, j]` holds for rows and columns of block `i, j` of size `block`.

    `bands` are (first row, end row, first scale row): usually one, more where a grid restarts inside a fused tensor.
    """

    file: int
    offset: int
    dtype: str
    columns: int
    block: tuple[int, int]
    bands: tuple[tuple[int, int, int], ...]


class Dequant(NamedTuple):
    """A move of float8 or four-bit values times block scales; `row` and `column` place its first value in the matrix."""

    source: str
    target: str
    scale: Scale
    row: int
    column: int


Transform = Cast | Dequant


class Move(NamedTuple):
    """`rows` runs of `width` source bytes, from `source_stride` apart to `target_stride` apart.

    One row is a plain copy. With a `cast` the run is `width` bytes of the source dtype and lands in the target dtype;
    rows of a Dequant are rows of its matrix.
    """

    source_file: int
    source: int
    source_stride: int
    target_file: int
    target: int
    target_stride: int
    width: int
    rows: int
    cast: Transform | None
    target_width: int

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self.target_width * self.rows

    @property
    def nbytes_read(self) -> int:
        return self.width * self.rows // self.per_byte

    @property
    def per_byte(self) -> int:
        """What `source`, `source_stride` and `width` count per byte of the file: 1, or more where values are packed."""
        return BY_NAME[self.cast.source].per_item if isinstance(self.cast, Dequant) else 1

    @property
    def span(self) -> int:
        """Bytes from the first source row to the end of the last."""
        return ((self.rows - 1) * self.source_stride + self.width) // self.per_byte


def some_rows(move: Move, first: int, count: int) -> Move:
    """`count` rows of a move from row `first` on."""
    cast = move.cast
    if isinstance(cast, Dequant):
        cast = cast._replace(row=cast.row + first)
    source, target = move.source + first * move.source_stride, move.target + first * move.target_stride
    return move._replace(source=source, target=target, rows=count, cast=cast)


class Pair(NamedTuple):
    """The same box in a part and in a stored piece of the whole.

    With a `step` above 1 the part is seen as `[rows / step, step, ...]` and the whole as `[rows, 1, ...]`: taking every
    step-th row is a box there.
    """

    part: int
    part_origin: Shape
    piece: int
    whole_origin: Shape
    size: Shape
    step: int = 1


def pairs(rule: Rule) -> tuple[Pair, ...]:
    """The boxes of a rule's arrangement: its blocks, cut where the whole is stored in pieces."""
    found, position, axis = [], 0, rule.arrangement.axis
    for block in rule.arrangement.blocks:
        shape = rule.shapes[block.part]

        def at(value: int, shape: Shape = shape) -> Shape:
            return tuple(value if i == axis else 0 for i in range(len(shape)))

        for piece, start, taken, length in _by_piece(rule, position, block.length):
            size = tuple(length if i == axis else extent for i, extent in enumerate(shape))
            if block.step > 1:
                found.append(_stepping(block, piece, start, taken, (length, *shape[1:])))
                continue
            found.append(Pair(block.part, at(block.start + taken), piece, at(start), size))
        position += block.length
    return tuple(found)


def _stepping(block: Block, piece: int, start: int, taken: int, size: Shape) -> Pair:
    """The pair of a block that takes every step-th row (axis 0 only)."""
    rest = (0,) * (len(size) - 1)
    first, phase = divmod(block.start, block.step)
    return Pair(
        block.part, (first + taken, phase, *rest), piece, (start, 0, *rest), (size[0], 1, *size[1:]), block.step
    )


def _seen(chunks: Sequence[Chunk], step: int) -> list[Chunk]:
    """Chunks with the first dimension seen as [rows / step, step]; they must be whole multiples."""
    found = []
    for chunk in chunks:
        if chunk.shape[0] % step or chunk.origin[0] % step:
            raise ValueError(f"a chunk of {chunk.shape[0]} rows at {chunk.origin[0]} cuts through steps of {step}")
        shape, origin = (chunk.shape[0] // step, step), (chunk.origin[0] // step, 0)
        found.append(chunk._replace(shape=(*shape, *chunk.shape[1:]), origin=(*origin, *chunk.origin[1:])))
    return found


def _by_piece(rule: Rule, position: int, length: int) -> Iterator[tuple[int, int, int, int]]:
    """(piece, row in the piece, row in the block, rows) of a block at `position` of the whole."""
    if not rule.pieces:
        yield 0, position, 0, length
        return
    begin = 0
    for number, (_, rows) in enumerate(rule.pieces):
        low, high = max(position, begin), min(position + length, begin + rows)
        if low < high:
            yield number, low - begin, low - position, high - low
        begin += rows


class Side:
    """Tensors of one side, with their chunks found by slot."""

    def __init__(self, tensors: Mapping[str, Tensor], scales: Mapping[str, Scale] | None = None) -> None:
        self.tensors = tensors
        self.scales = scales or {}
        self._boxes: dict[tuple[str, int], dict[tuple[int, ...], list[Chunk]]] = {}

    def chunks(self, slot: Slot) -> Sequence[Chunk]:
        if not slot.place:
            return self.tensors[slot.name].chunks
        key = (slot.name, len(slot.place))
        boxes = self._boxes.get(key)
        if boxes is None:
            boxes = self._boxes[key] = leading_boxes(self.tensors[slot.name], len(slot.place))
        return boxes.get(slot.place, [])


def link(rows: Iterable[Bound], hf: Side, megatron: Side, to_megatron: bool) -> Iterator[Move]:
    """The moves that build the destination side from the source side, row by row of the table."""
    for row, boxes in paired(row for row in rows if row.rule.codec is None):
        # encoded parts are read and written by engine.codecs
        wholes = [Located(megatron.chunks(slot), megatron.tensors[slot.name].dtype) for slot in row.wholes]
        parts = [
            Located(hf.chunks(slot), hf.tensors[slot.name].dtype, hf.scales.get(slot.name) if to_megatron else None)
            for slot in row.hf
        ]
        shift = row.rule.shift if to_megatron else -row.rule.shift
        for pair in boxes:
            part, whole = (parts[pair.part], pair.part_origin), (wholes[pair.piece], pair.whole_origin)
            if pair.step > 1:
                part = (part[0]._replace(chunks=_seen(part[0].chunks, pair.step)), part[1])
                whole = (whole[0]._replace(chunks=_seen(whole[0].chunks, 1)), whole[1])
            source, target = (part, whole) if to_megatron else (whole, part)
            yield from box_moves(source, target, pair.size, shift)


def paired(rows: Iterable[Bound]) -> Iterator[tuple[Bound, tuple[Pair, ...]]]:
    """Rows with their rule's pairs, which the rows of one rule share."""
    rule: Rule | None = None
    boxes: tuple[Pair, ...] = ()
    for row in rows:
        if row.rule is not rule:
            rule, boxes = row.rule, pairs(row.rule)
        yield row, boxes


class Located(NamedTuple):
    """The chunks of a logical tensor, its dtype and, if it is quantised, its scales."""

    chunks: Sequence[Chunk]
    dtype: str
    scale: Scale | None = None


def box_moves(
    source: tuple[Located, Shape], target: tuple[Located, Shape], size: Shape, shift: float = 0.0
) -> Iterator[Move]:
    """Moves of the box of `size` between two logical tensors, each with the box's origin in it."""
    here, there = source[0], target[0]
    cast: Transform | None = None
    if here.scale is not None:
        cast = Dequant(here.dtype, there.dtype, here.scale, 0, 0)
    elif here.dtype != there.dtype or shift:
        cast = Cast(here.dtype, there.dtype, shift)
    items = (BY_NAME[here.dtype].itemsize, BY_NAME[there.dtype].itemsize)
    a, b = _exactly(here.chunks, source[1], size), _exactly(there.chunks, target[1], size)
    if a is not None and b is not None:
        count = size[-1] if isinstance(cast, Dequant) else prod(size)  # block scales need one row per matrix row
        rows, width, wide = prod(size[:-1]) if isinstance(cast, Dequant) else 1, count * items[0], count * items[1]
        yield Move(a.file, a.offset, width, b.file, b.offset, wide, width, rows, cast, wide)
        return
    for from_, low_a, high_a in _inside(here.chunks, source[1], size):
        for to, low_b, high_b in _inside(there.chunks, target[1], size):
            low = tuple(map(max, low_a, low_b))
            extent = tuple(h - lo for h, lo in zip(map(min, high_a, high_b), low, strict=True))
            if all(n > 0 for n in extent):
                placed = cast
                if isinstance(cast, Dequant):
                    row, column = (n + o for n, o in zip(low, source[1], strict=True))
                    placed = cast._replace(row=row, column=column)
                for move in _overlap((from_, source[1]), (to, target[1]), low, extent, items, placed):
                    yield by_rows(move, extent[-1]) if isinstance(cast, Dequant) else move


def _exactly(chunks: Sequence[Chunk], origin: Shape, size: Shape) -> Chunk | None:
    """The chunk that is just the box, as most are."""
    for chunk in chunks:
        if chunk.shape == size and chunk.origin == origin:
            return chunk
    return None


def by_rows(move: Move, columns: int) -> Move:
    """The same move with one row per matrix row of `columns` elements, as block scales need it."""
    if move.rows > 1:
        return move
    item, wide = 1, move.target_width // move.width
    rows = move.width // (columns * item)
    width, target = columns * item, columns * item * wide
    return move._replace(source_stride=width, target_stride=target, width=width, target_width=target, rows=rows)


def _inside(chunks: Sequence[Chunk], origin: Shape, size: Shape) -> list[tuple[Chunk, Shape, Shape]]:
    """Chunks that meet the box, with the meeting range in the box's own coordinates."""
    found = []
    for chunk in chunks:
        low = tuple(max(0, c - o) for c, o in zip(chunk.origin, origin, strict=True))
        high = tuple(min(s, c + n - o) for s, c, n, o in zip(size, chunk.origin, chunk.shape, origin, strict=True))
        if all(a < b for a, b in zip(low, high, strict=True)):
            found.append((chunk, low, high))
    return found


def _overlap(
    source: tuple[Chunk, Shape],
    target: tuple[Chunk, Shape],
    low: Shape,
    extent: Shape,
    items: tuple[int, int],
    cast: Transform | None,
) -> Iterator[Move]:
    """Moves of one overlap; trailing dimensions that are contiguous on both sides become one run."""
    (a, origin_a), (b, origin_b) = source, target
    run = len(extent)
    while run > 0 and all(extent[i] == a.shape[i] == b.shape[i] for i in range(run, len(extent))):
        run -= 1
    count = prod(extent[run:])
    strides_a, strides_b = _strides(a.shape), _strides(b.shape)
    start_a = sum((n + o - c) * s for n, o, c, s in zip(low, origin_a, a.origin, strides_a, strict=True))
    start_b = sum((n + o - c) * s for n, o, c, s in zip(low, origin_b, b.origin, strides_b, strict=True))
    rows = extent[run - 1] if run else 1
    step_a, step_b = (strides_a[run - 1], strides_b[run - 1]) if run else (count, count)
    for outer in product(*(range(n) for n in extent[: max(0, run - 1)])):
        shift_a = start_a + sum(i * s for i, s in zip(outer, strides_a, strict=False))
        shift_b = start_b + sum(i * s for i, s in zip(outer, strides_b, strict=False))
        yield Move(
            a.file,
            a.offset + shift_a * items[0],
            step_a * items[0],
            b.file,
            b.offset + shift_b * items[1],
            step_b * items[1],
            count * items[0],
            rows,
            cast,
            count * items[1],
        )


def _strides(shape: Shape) -> Shape:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
