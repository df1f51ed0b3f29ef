"""Reading the bytes of one tensor that a program would write, without writing it: for comparing and hashing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

from ..stores.base import Tensor
from .execute import tiles
from .files import Handles, read_exactly
from .moves import Move

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
                for row in range(part.rows):
                    at = part.target + row * part.target_stride - start
                    read_exactly(
                        self.handles,
                        part.source_file,
                        view[at : at + part.width],
                        part.source + row * part.source_stride,
                    )
        return data


def _clip(move: Move, start: int, stop: int) -> Iterator[Move]:
    """The part of a move whose target lies in the byte range; rows of strided moves never straddle a tile's edge."""
    if move.rows == 1:
        low, high = max(start, move.target), min(stop, move.target + move.width)
        if low < high:
            yield move._replace(source=move.source + low - move.target, target=low, width=high - low)
        return
    first = max(0, -(-(start - move.target) // move.target_stride))
    last = min(move.rows, -(-(stop - move.target) // move.target_stride))
    if first < last:
        kept = move._replace(
            source=move.source + first * move.source_stride,
            target=move.target + first * move.target_stride,
            rows=last - first,
        )
        yield from tiles(kept, TILE)


def handles_for(paths: list[Path]) -> Handles:
    return Handles(paths, os.O_RDONLY)
