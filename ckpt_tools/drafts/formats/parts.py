"""Head tensors put together from others, or cut out of them, without reading their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

from ...engine.moves import Dequant, Move
from ...stores.base import Chunk, Tensor
from ..spec import HeadTensor, plain


def zeros(name: str, dtype: str, shape: tuple[int, ...]) -> HeadTensor:
    """A tensor that no source stores; what no move covers is zero."""
    return HeadTensor("", Tensor(name, dtype, shape, ()), (), ())


def stored(tensor: Tensor, files: tuple[Path, ...]) -> HeadTensor:
    """A tensor under its own name."""
    return plain(tensor.name, tensor, files)


def stacked(name: str, shape: tuple[int, ...], parts: list[HeadTensor]) -> HeadTensor:
    """The bytes of `parts` one after another as one tensor; they must be of one dtype and out of the same files."""
    if {(part.dtype, part.files) for part in parts} != {(parts[0].dtype, parts[0].files)}:
        raise ValueError(f"{name}: parts of different dtypes or files")
    if sum(prod(part.shape) for part in parts) != prod(shape):
        raise ValueError(f"{name}: the parts do not make up {list(shape)}")
    moves, position = [], 0
    for part in parts:
        moves += [move._replace(target=move.target + position) for move in part.moves]
        position += part.tensor.nbytes
    tensor = Tensor(name, parts[0].dtype, shape, (Chunk(0, 0, (0,) * len(shape), shape),))
    return HeadTensor(parts[0].source, tensor, parts[0].files, tuple(moves))


def cut(entry: HeadTensor, name: str, first: int, shape: tuple[int, ...]) -> HeadTensor:
    """`shape` elements of a tensor from element `first` on."""
    start = first * entry.tensor.itemsize
    stop = start + prod(shape) * entry.tensor.itemsize
    moves = tuple(inner for move in entry.moves for inner in _inside(move, start, stop))
    tensor = Tensor(name, entry.dtype, shape, (Chunk(0, 0, (0,) * len(shape), shape),))
    return HeadTensor(entry.source, tensor, entry.files, moves)


def _inside(move: Move, start: int, stop: int) -> Iterator[Move]:
    """The part of a move whose target lies in bytes `start..stop`, counted from `start`; rows one by one if it is strided."""
    if isinstance(move.cast, Dequant):
        raise ValueError("a dequantised tensor is not cut")
    for row in range(move.rows):
        begin = move.target + row * move.target_stride
        low, high = max(begin, start), min(begin + move.target_width, stop)
        if low < high:
            source, width = ((n * move.width) // move.target_width for n in (low - begin, high - low))
            yield move._replace(
                source=move.source + row * move.source_stride + source,
                source_stride=width,
                target=low - start,
                target_stride=high - low,
                width=width,
                rows=1,
                target_width=high - low,
            )
