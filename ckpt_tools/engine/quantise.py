"""Writing block-quantised float8, one band of rows at a time.

Per block of the matrix, in float32: amax = max |w|, scale = amax / 448 (1 where amax is 0), q = w / scale rounded to the
nearest float8_e4m3fn (ties to even). 448 is that type's largest value; `scale` is stored as float32 `weight_scale_inv`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..stores.dtypes import BY_NAME
from .cast import bytes_of, torch_dtype
from .files import Handles
from .program import Quantise
from .view import View

if TYPE_CHECKING:
    import torch

LARGEST = 448.0


class Band(NamedTuple):
    """Rows of one row of blocks: their bytes and where they belong, within the weight and within the scale tensor."""

    values: memoryview
    value_offset: int
    scales: memoryview
    scale_offset: int


def quantised(task: Quantise, sources: Handles) -> Iterator[Band]:
    """The bands of a matrix in order."""
    import torch

    rows, columns = task.tensor.shape
    row_bytes = columns * BY_NAME[task.tensor.dtype].itemsize
    view = View(task.tensor, task.moves, sources)
    across = task.scale.shape[1]
    for index, start in enumerate(range(0, rows, task.block[0])):
        stop = min(start + task.block[0], rows)
        raw = view.read(start * row_bytes, stop * row_bytes)
        values = torch.frombuffer(raw, dtype=torch_dtype(task.tensor.dtype)).view(stop - start, columns).float()
        codes, scales = quantise_band(values, task.block[1])
        yield Band(bytes_of(codes), start * columns, bytes_of(scales), index * across * 4)


def quantise_band(values: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(float8 values `[rows, columns]`, float32 scales `[blocks]`) of one row of blocks of `width` columns."""
    import torch

    amax = torch.stack([values[:, i : i + width].abs().max() for i in range(0, values.shape[1], width)])
    scales = torch.where(amax == 0, torch.ones_like(amax), amax / LARGEST)
    spread = scales.repeat_interleave(width)[: values.shape[1]]
    codes = (values / spread).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, scales
