"""Four-bit weights of compressed-tensors' `pack-quantized` form, times the scales of their groups.

An int32 holds eight values, the first in its lowest bits, each stored as value + 8; little-endian, that is one value after
another, two to a byte, the low half first (compressed_tensors, pack_quantized). A row has one scale per group of columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stores.dtypes import BY_NAME
from .files import Handles, read_exactly
from .moves import Dequant

if TYPE_CHECKING:
    import torch

OFFSET = 8


def unpacked(rows: torch.Tensor, cast: Dequant, sources: Handles) -> torch.Tensor:
    """float32(value) * float32(scale) of packed `rows`, uint8 `[rows, columns / 2]`; float32 `[rows, columns]`."""
    import torch

    scale, count = cast.scale, rows.shape[0]
    values = torch.stack((rows & 0x0F, rows >> 4), dim=-1).flatten(1).float().sub_(OFFSET)
    kind = BY_NAME[scale.dtype]
    data = memoryview(bytearray(count * scale.columns * kind.itemsize))
    read_exactly(sources, scale.file, data, scale.offset + cast.row * scale.columns * kind.itemsize)
    factors = torch.frombuffer(data, dtype=getattr(torch, kind.torch)).view(count, scale.columns).float()
    columns = slice(cast.column, cast.column + values.shape[1])
    return values.mul_(factors.repeat_interleave(scale.block[1], 1)[:, columns])
