"""How two tensors differ: the largest difference of an element, and how far the whole moved. Tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from .engine.cast import cast_bytes
from .engine.moves import Cast
from .engine.view import View
from .stores.dtypes import BY_NAME, FLOATS

if TYPE_CHECKING:
    import torch


class Delta(NamedTuple):
    """Largest |a - b|, and the sums of squares of a - b and of a."""

    max_abs: float
    squares: float
    base: float

    @property
    def relative(self) -> float | None:
        return sqrt(self.squares / self.base) if self.base > 0 and self.squares >= 0 else None


def max_difference(a: View, b: View, rounded: bool = False) -> float | None:
    """None if every element is equal bit by bit (or by value across dtypes); else the largest |a - b|, nan if one is nan."""
    delta = difference_of(a, b, rounded)
    return None if delta is None else delta.max_abs


def difference_of(a: View, b: View, rounded: bool = False) -> Delta | None:
    """As `max_difference`, with the sums that tell how far the whole tensor moved."""
    worst: float | None = None
    squares, base, equal = 0.0, 0.0, []
    cast = Cast(a.tensor.dtype, b.tensor.dtype)
    dtype = cast.target if rounded else cast.source
    for read, there, where in _tile_pairs(a, b):
        here = bytearray(cast_bytes(memoryview(read), cast)) if dtype != cast.source else read
        if dtype == cast.target and here == there:
            equal.append(where)
            continue
        if dtype not in FLOATS and dtype == cast.target:
            return Delta(float("nan"), float("nan"), 0.0)
        delta = _delta(here, dtype, there, cast.target)
        if delta is None:
            equal.append(where)
            continue
        worst = delta.max_abs if worst is None or not worst >= delta.max_abs else worst
        squares, base = squares + delta.squares, base + delta.base
    if worst is None:
        return None
    return Delta(worst, squares, base + sum(_square(a.read(*where), cast.source) for where in equal))


def _tile_pairs(a: View, b: View) -> Iterator[tuple[bytearray, bytearray, tuple[int, int]]]:
    """The same rows of both, whatever their element sizes, and where they lie in the first."""
    ratio = BY_NAME[b.tensor.dtype].itemsize / BY_NAME[a.tensor.dtype].itemsize
    for start, stop in a.row_tiles():
        yield a.read(start, stop), b.read(int(start * ratio), int(stop * ratio)), (start, stop)


def _values(data: bytearray, dtype: str) -> torch.Tensor:
    import torch

    return torch.frombuffer(data, dtype=getattr(torch, BY_NAME[dtype].torch)).double()


def _square(data: bytearray, dtype: str) -> float:
    return float(_values(data, dtype).square().sum()) if dtype in FLOATS else 0.0


def _delta(here: bytearray, here_dtype: str, there: bytearray, there_dtype: str) -> Delta | None:
    """How two tiles differ; None if their values are equal (a difference of bits alone counts as 0.0)."""
    import torch

    a, b = _values(here, here_dtype), _values(there, there_dtype)
    if here_dtype != there_dtype and torch.equal(a, b):
        return None
    apart = a - b
    return Delta(float(apart.abs().max()), float(apart.square().sum()), float(a.square().sum()))
