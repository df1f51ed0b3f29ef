"""The program: moves and literals in destination order, cut into tasks that any thread can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import NamedTuple

from ..errors import CkptError, error
from ..stores.base import Chunk, Image, Literal, Tensor
from .codecs import Decode, Encode
from .moves import Move, some_rows

SMALL = 64 << 10  # below this, one buffered write for many pieces beats a system call each
GATHER = 4 << 20
PIECE = 64 << 20
ZEROS = memoryview(bytes(SMALL))


class Piece(NamedTuple):
    """A run inside a gathered write: bytes at `source` of a file, or `data` itself."""

    length: int
    source_file: int
    source: int
    data: bytes | memoryview | None


class Gather(NamedTuple):
    """Adjacent small pieces, written at once."""

    file: int
    offset: int
    pieces: list[Piece]
    nbytes: int


class Quantise(NamedTuple):
    """A matrix to write as float8 values and block scales; `moves` build its bfloat16 bytes from offset 0."""

    tensor: Tensor
    moves: list[Move]
    weight: Chunk
    scale: Chunk
    block: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return prod(self.weight.shape) + 4 * prod(self.scale.shape)

    @property
    def nbytes_read(self) -> int:
        return sum(move.nbytes_read for move in self.moves)


Task = Move | Gather | Quantise | Decode | Encode


def files_of(task: Task) -> set[int]:
    """The destination files that a task writes to."""
    if isinstance(task, Move):
        return {task.target_file}
    if isinstance(task, Quantise):
        return {task.weight.file, task.scale.file}
    return {take.file for take in task.takes} if isinstance(task, Decode) else {task.file}


@dataclass(frozen=True, slots=True)
class Program:
    """Everything an execution needs: source files, the destination image, the moves, and matrices that are made apart."""

    sources: list[Path]
    image: Image
    moves: list[Move]
    apart: list[Quantise | Decode | Encode] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.image.nbytes

    @property
    def nbytes_read(self) -> int:
        """Bytes of the source's tensors; block scales are read beside them."""
        return sum(move.nbytes_read for move in self.moves) + sum(task.nbytes_read for task in self.apart)

    @property
    def casts(self) -> bool:
        return bool(self.apart) or any(move.cast for move in self.moves)

    def check(self, zero_bytes: int) -> None:
        """Raise CkptError unless the moves cover every tensor byte except `zero_bytes` of padding, none twice."""
        wanted = sum(tensor.nbytes for tensor in self.image.tensors.values()) - zero_bytes
        moved = sum(move.nbytes for move in self.moves) + sum(task.nbytes for task in self.apart)
        ends: dict[int, int] = {}
        overlap = ""
        for move in sorted((move for move in self.moves if move.rows == 1), key=lambda m: (m.target_file, m.target)):
            if move.target < ends.get(move.target_file, 0):
                overlap = f"{self.image.files[move.target_file][0]} at byte {move.target:,}"
            ends[move.target_file] = move.target + move.nbytes
        if moved != wanted or overlap:
            raise error(
                CkptError,
                "program-incomplete",
                "the byte program does not cover the destination exactly once",
                where=overlap,
                expected=f"{wanted:,} bytes",
                actual=f"{moved:,} bytes",
                fix="chunks of the source overlap or miss a part; save it again. If it is sound, this is a bug: report it",
            )

    def tasks(self) -> Iterator[Task]:
        """Tasks in destination order: big contiguous pieces, gathered small ones, strided or casting moves."""
        items: list[Move | Literal] = [*self.moves, *_split(self.image.literals)]
        items.sort(key=lambda item: item[3:5] if isinstance(item, Move) else item[:2])
        yield from self.apart
        yield from _gathered(items)


def _split(literals: Iterable[Literal]) -> Iterator[Literal]:
    """Literals in runs of at most SMALL bytes: the header of a file with many tensors is megabytes."""
    for literal in literals:
        file, offset, data, zeros = literal
        if len(data) + zeros <= SMALL:
            yield literal
            continue
        for start in range(0, len(data), SMALL):
            yield Literal(file, offset + start, data[start : start + SMALL])
        for start in range(0, zeros, SMALL):
            yield Literal(file, offset + len(data) + start, b"", min(SMALL, zeros - start))


def _gathered(items: Iterable[Move | Literal]) -> Iterator[Task]:
    open_: Gather | None = None
    for item in items:
        if isinstance(item, Move):
            if item.rows > 1 or item.cast or item.width > SMALL:
                yield from _pieces(item)
                continue
            file, offset = item.target_file, item.target
            pieces = [Piece(item.width, item.source_file, item.source, None)]
        else:
            file, offset = item.file, item.offset
            pieces = [Piece(len(data), -1, 0, data) for data in (item.data, ZEROS[: item.zeros]) if data]
        adjacent = open_ and open_.file == file and open_.offset + open_.nbytes == offset and open_.nbytes < GATHER
        if open_ and not adjacent:
            yield open_
            open_ = None
        before, begin, nbytes = (open_.pieces, open_.offset, open_.nbytes) if open_ else ([], offset, 0)
        before += pieces
        open_ = Gather(file, begin, before, nbytes + sum(piece.length for piece in pieces))
    if open_:
        yield open_


def _pieces(move: Move) -> Iterator[Move]:
    """A move cut into about PIECE bytes, so that threads share large ones: copies anywhere, others between rows."""
    if move.rows > 1:
        step = max(1, PIECE // move.width)
        for first in range(0, move.rows, step):
            yield some_rows(move, first, min(step, move.rows - first))
    elif move.cast or move.width <= PIECE:
        yield move
    else:
        for start in range(0, move.width, PIECE):
            width = min(PIECE, move.width - start)
            yield move._replace(source=move.source + start, target=move.target + start, width=width, target_width=width)
