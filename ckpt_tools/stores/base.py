"""What every store is to the engine: files, and tensors that are tiled by row-major chunks of those files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import NamedTuple

from ..mapping.arrangement import Shape
from .dtypes import BY_NAME


class Chunk(NamedTuple):
    """A box of a tensor that lies row-major and contiguous in a file."""

    file: int
    offset: int
    origin: Shape
    shape: Shape


class Tensor(NamedTuple):
    """A stored tensor; `dtype` is a safetensors name. Chunks tile the shape exactly."""

    name: str
    dtype: str
    shape: Shape
    chunks: tuple[Chunk, ...]

    @property
    def itemsize(self) -> int:
        return BY_NAME[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize // BY_NAME[self.dtype].per_item


@dataclass(slots=True)
class Source:
    """Tensors in files that exist. `files` are absolute; a Chunk's `file` indexes them."""

    root: Path
    files: list[Path]
    tensors: dict[str, Tensor]


class Literal(NamedTuple):
    """Bytes that belong at a place of a destination file, and `zeros` after them: headers, zip records, objects."""

    file: int
    offset: int
    data: bytes
    zeros: int = 0


@dataclass(slots=True)
class Image:
    """A destination laid out before anything is written: every byte has an address.

    `files` are (relative path, size); regions that no literal and no tensor covers are zero.
    """

    files: list[tuple[str, int]]
    literals: list[Literal]
    tensors: dict[str, Tensor]
    small_files: dict[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self.files) + sum(len(data) for data in self.small_files.values())


def is_file(path: Path) -> bool:
    """Whether a file is there; False also for names that no file can have, which `Path.is_file` raises for."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def tile_exactly(boxes: Sequence[tuple[Shape, Shape]], shape: Shape) -> bool:
    """Whether the boxes (origin, shape) cover a tensor once, without a hole: slab by slab along the first dimension."""
    if not shape or len(boxes) == 1:
        return len(boxes) == 1 and boxes[0][1] == shape and not any(boxes[0][0])
    if _is_grid(boxes, shape):
        return True
    ranges: dict[tuple[int, int], list[tuple[Shape, Shape]]] = {}
    for origin, size in boxes:
        ranges.setdefault((origin[0], origin[0] + size[0]), []).append((origin[1:], size[1:]))
    slabs = list(pairwise(sorted({0, shape[0], *(edge for both in ranges for edge in both)})))
    if slabs and slabs[-1][1] > shape[0]:
        return False
    if sorted(ranges) == slabs:  # the usual case: no range crosses another
        return all(tile_exactly(inner, shape[1:]) for inner in ranges.values())
    return all(
        tile_exactly([box for (a, b), inner in ranges.items() if a <= start and stop <= b for box in inner], shape[1:])
        for start, stop in slabs
    )


def _is_grid(boxes: Sequence[tuple[Shape, Shape]], shape: Shape) -> bool:
    """Whether equal boxes stand in a grid, as those of stacked layers and experts do: one look instead of one per slab."""
    cells = {size for _, size in boxes}
    if len(cells) != 1:
        return False
    (cell,) = cells
    if not all(cell) or any(whole % part for whole, part in zip(shape, cell, strict=True)):
        return False
    corners = set(product(*(range(0, whole, part) for whole, part in zip(shape, cell, strict=True))))
    return len(boxes) == len(corners) and {origin for origin, _ in boxes} == corners


def leading_boxes(tensor: Tensor, axes: int) -> dict[tuple[int, ...], list[Chunk]]:
    """The chunks of every index on the first `axes` dimensions, with those dimensions taken off.

    A row-major chunk that spans several leading indices is contiguous for each of them, so it falls apart exactly.
    """
    if axes == 0:
        return {(): list(tensor.chunks)}
    found: dict[tuple[int, ...], list[Chunk]] = {}
    ones = (1,) * axes
    for chunk in tensor.chunks:
        if chunk.shape[:axes] == ones:  # as every writer but the plainest cuts them
            piece = Chunk(chunk.file, chunk.offset, chunk.origin[axes:], chunk.shape[axes:])
            found.setdefault(chunk.origin[:axes], []).append(piece)
            continue
        step = prod(chunk.shape[axes:]) * tensor.itemsize
        for number, inner in enumerate(positions(chunk.shape[:axes])):
            index = tuple(start + i for start, i in zip(chunk.origin, inner, strict=False))
            piece = Chunk(chunk.file, chunk.offset + number * step, chunk.origin[axes:], chunk.shape[axes:])
            found.setdefault(index, []).append(piece)
    return found


def positions(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in positions(shape[1:]):
            yield (first, *rest)
