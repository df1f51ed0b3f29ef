"""Transforming the elements of a tile: casts, shifts, block scales. torch, loaded only when a program transforms."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import CkptError, error
from ..stores.dtypes import BY_NAME, INT4
from .files import Handles, read_exactly
from .int4 import unpacked
from .moves import Cast, Dequant, Move, Scale

if TYPE_CHECKING:
    import torch


@contextmanager
def one_thread_each() -> Iterator[None]:
    """While the block runs, torch works in the thread that calls it: the engine's threads share the cores already."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cast_bytes(data: memoryview, cast: Cast) -> memoryview:
    """`data` in the target dtype, rounded to nearest even; raises CkptError if a finite value becomes infinite."""
    import torch

    values = torch.frombuffer(data, dtype=torch_dtype(cast.source))
    return bytes_of(_converted(values, cast))


def transformed(move: Move, raw: memoryview, sources: Handles) -> memoryview:
    """The target bytes of a tile, row after row without gaps, until this thread's next call; `raw` spans its source rows."""
    import torch

    data = torch.frombuffer(raw, dtype=torch.uint8)
    width, stride = move.width // move.per_byte, move.source_stride // move.per_byte
    rows = data.as_strided((move.rows, width), (stride, 1)).contiguous()
    assert move.cast is not None
    if isinstance(move.cast, Cast):
        return bytes_of(_converted(rows.view(torch_dtype(move.cast.source)), move.cast))
    if move.cast.source == INT4.name:
        return bytes_of(unpacked(rows, move.cast, sources).to(torch_dtype(move.cast.target)))
    return bytes_of(_dequantised(rows, move.cast, sources))


def torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, BY_NAME[name].torch)
    assert isinstance(dtype, torch.dtype)
    return dtype


def bytes_of(values: torch.Tensor) -> memoryview:
    """The elements' bytes, row-major; a view of the tensor's memory where it is contiguous."""
    import torch

    return values.contiguous().view(torch.uint8).numpy().reshape(-1).data


def _converted(values: torch.Tensor, cast: Cast) -> torch.Tensor:
    """Shifts are done in float32 (float64 for float64), so that bfloat16 is rounded once."""
    import torch

    target = torch_dtype(cast.target)
    exact = values
    if cast.shift:
        exact = (values if values.dtype == torch.float64 else values.float()) + cast.shift
    made = exact.to(target)
    _check_fits(values, made, cast)
    return made


def _check_fits(values: torch.Tensor, made: torch.Tensor, cast: Cast | Dequant) -> None:
    import torch

    if not torch.equal(torch.isfinite(values), torch.isfinite(made)):
        raise error(
            CkptError,
            "cast-overflow",
            f"a value does not fit {cast.target}",
            expected=f"values within {torch.finfo(made.dtype).max:.4g}",
            actual=f"{values[torch.isfinite(values)].abs().max().item():.4g} in {cast.source}",
            fix="choose a dtype with a wider range (bfloat16 or float32)",
        )


class _Scratch(threading.local):
    """Buffers that a thread keeps from tile to tile: fresh memory costs as much as the arithmetic."""

    def take(self, role: str, dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
        import torch

        flat = self.__dict__.get(role)
        if flat is None or flat.dtype != dtype or flat.numel() < rows * columns:
            flat = self.__dict__[role] = torch.empty(rows * columns, dtype=dtype)
        found: torch.Tensor = flat[: rows * columns].view(rows, columns)
        return found


_scratch = _Scratch()


def _dequantised(values: torch.Tensor, cast: Dequant, sources: Handles) -> torch.Tensor:
    """float32(value) * float32(scale of its block), then rounded once to the target dtype; `values` are float8 bytes."""
    import torch

    count, columns = values.shape
    target, scale = torch_dtype(cast.target), cast.scale
    halves, exponent = _as_halves(values, cast.source)
    safe = torch.finfo(target).max / torch.finfo(torch_dtype(cast.source)).max
    made = _scratch.take("made", target, count, columns)
    for first, stop, factors in _scale_rows(scale, cast.row, cast.row + count, sources):
        low, high = first - cast.row, stop - cast.row
        row = _scratch.take("product", torch.float32, stop - first, columns).copy_(halves[low:high])
        row *= _per_column(factors * exponent, scale.block[1], cast.column, columns)
        made[low:high] = row
        if not bool((factors.abs() <= safe).all()):
            _check_fits(row, made[low:high], cast)
    return made


def _as_halves(values: torch.Tensor, dtype: str) -> tuple[torch.Tensor, float]:
    """Float8 bytes as float16 of the same value over a power of two, by shifting bits: torch converts float8 one by one.

    e5m2 is the upper byte of float16. e4m3 has a bias of 7 against 15, so its bits, shifted by 7, mean 2^-8 of the value,
    subnormals included; its NaN (all ones) has to be put back.
    """
    import torch

    # as int8, the sign fills the upper byte
    wide = _scratch.take("wide", torch.int16, *values.shape).copy_(values.view(torch.int8))
    if dtype == "F8_E5M2":
        return wide.mul_(256).view(torch.float16), 1.0
    nan = torch.bitwise_and(values, 0x7F, out=_scratch.take("nan", torch.uint8, *values.shape)).eq_(0x7F)
    halves = wide.mul_(128).bitwise_and_(-16385).view(torch.float16)  # all but bit 14, a copy of the sign
    if bool(nan.any()):
        halves.masked_fill_(nan.bool(), float("nan"))
    return halves, 256.0


def _per_column(factors: torch.Tensor, width: int, column: int, columns: int) -> torch.Tensor:
    return factors.repeat_interleave(width)[column : column + columns]


def _scale_rows(scale: Scale, begin: int, end: int, sources: Handles) -> list[tuple[int, int, torch.Tensor]]:
    """Row ranges of the matrix that share one row of scales, with that row as float32."""
    import torch

    found, size = [], scale.columns * BY_NAME[scale.dtype].itemsize
    for first, stop, number in scale.bands:
        low, high = max(first, begin), min(stop, end)
        for index in range((low - first) // scale.block[0], -(-(high - first) // scale.block[0]) if low < high else 0):
            view = memoryview(bytearray(size))
            read_exactly(sources, scale.file, view, scale.offset + (number + index) * size)
            factors = torch.frombuffer(view, dtype=torch_dtype(scale.dtype)).float()
            start = first + index * scale.block[0]
            found.append((max(low, start), min(high, start + scale.block[0]), factors))
    return found
