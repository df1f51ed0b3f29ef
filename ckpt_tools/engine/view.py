"""Reading the bytes of one tensor that a program would write, without writing it: for comparing and hashing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

from ..stores.base import Tensor
from .cast import transformed
from .files import Handles, read_exactly
from .moves import Move, some_rows
from .tiling import tiles

TILE = 8 << 20


class View:
    """A tensor as moves from files; the moves' targets are offsets within the tensor (target files are ignored)."""

    def __init__(self, tensor: Tensor, moves: list[Move], handles: Handles) -> None:
        self.tensor, self.moves, self.handles = tensor, moves, handles

    def row_tiles(self) -> Iterator[tuple[int, int]]:
        """Byte ranges of whole rows, about TILE bytes each."""
        rows = self.tensor.shape[0] if self.tensor.shape else 1
        row_bytes = max(1, prod(self.tensor.shape[1:]) * self.tensor.itemsize)
        step = max(1, TILE // row_bytes)
        for start in range(0, rows, step):
            yield start * row_bytes, min(start + step, rows) * row_bytes

    def read(self, start: int, stop: int) -> bytearray:
        """Bytes `start..stop`, a range that `row_tiles` gave; what no move covers is zero."""
        data = bytearray(stop - start)
        view = memoryview(data)
        for move in self.moves:
            for part in _clip(move, start, stop):
                self._fill(part, view, start)
        return data

    def _fill(self, move: Move, view: memoryview, start: int) -> None:
        """Put a tile's target bytes into `view`, which begins at byte `start` of the tensor."""
        if move.cast:
            raw = memoryview(bytearray(move.span))
            read_exactly(self.handles, move.source_file, raw, move.source // move.per_byte)
            made, width = transformed(move, raw, self.handles), move.target_width
            for row in range(move.rows):
                at = move.target + row * move.target_stride - start
                view[at : at + width] = made[row * width : (row + 1) * width]
            return
        for row in range(move.rows):
            at = move.target + row * move.target_stride - start
            read_exactly(
                self.handles, move.source_file, view[at : at + move.width], move.source + row * move.source_stride
            )


def _clip(move: Move, start: int, stop: int) -> Iterator[Move]:
    """The part of a move whose target lies in the byte range; rows of strided moves never straddle a tile's edge."""
    if move.rows == 1:
        low, high = max(start, move.target), min(stop, move.target + move.target_width)
        if low < high:
            source, shift = (n * move.width // move.target_width for n in (high - low, low - move.target))
            yield move._replace(source=move.source + shift, target=low, width=source, target_width=high - low)
        return
    first = max(0, -(-(start - move.target) // move.target_stride))
    last = min(move.rows, -(-(stop - move.target) // move.target_stride))
    if first < last:
        yield from tiles(some_rows(move, first, last - first), TILE)


def handles_for(paths: list[Path]) -> Handles:
    return Handles(paths, os.O_RDONLY)
