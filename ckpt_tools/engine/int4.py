"""Four-bit weights of compressed-tensors' `pack-quantized` form, times the scales of their groups.

An int32 holds eight values, the first in its lowest bits, each stored as value + 8; little-endian, that is one value after
another, two to a byte, the low half first (compressed_tensors, pack_quantized). A row has one scale per group of columns.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ..stores.dtypes import BY_NAME
from .files import Handles, read_exactly
from .moves import Dequant

if TYPE_CHECKING:
    import torch

OFFSET = 8


@cache
def _pairs() -> torch.Tensor:
    """The two values of every byte, as the bytes of two bfloat16 numbers in an int32."""
    import torch

    bits = torch.arange(256)
    both = torch.stack((bits & 0x0F, bits >> 4), dim=-1) - OFFSET
    return both.to(torch.bfloat16).view(torch.int32).flatten()


def unpacked(rows: torch.Tensor, cast: Dequant, sources: Handles) -> torch.Tensor:
    """float32(value) * float32(scale) of packed `rows`, uint8 `[rows, columns / 2]`; float32 `[rows, columns]`."""
    import torch

    scale, count = cast.scale, rows.shape[0]
    values = _pairs().index_select(0, rows.flatten().int()).view(torch.bfloat16).view(count, -1).float()
    kind = BY_NAME[scale.dtype]
    data = memoryview(bytearray(count * scale.columns * kind.itemsize))
    read_exactly(sources, scale.file, data, scale.offset + cast.row * scale.columns * kind.itemsize)
    factors = torch.frombuffer(data, dtype=getattr(torch, kind.torch)).view(count, scale.columns).float()
    size, columns = scale.block[1], values.shape[1]
    if cast.column % size or columns % size:
        return values.mul_(factors.repeat_interleave(size, 1)[:, cast.column : cast.column + columns])
    first = cast.column // size
    values.view(count, -1, size).mul_(factors[:, first : first + columns // size, None])
    return values
