"""The tensors of a head as torch tensors."""

from __future__ import annotations

import torch

from ..drafts.spec import DraftSpec, HeadTensor
from ..stores.dtypes import BY_NAME


def to_torch(entry: HeadTensor) -> torch.Tensor:
    """One tensor, in the dtype in which it is stored."""
    kind = getattr(torch, BY_NAME[entry.dtype].torch)
    return torch.frombuffer(bytearray(entry.read()), dtype=kind).reshape(entry.shape)


def read_head(spec: DraftSpec, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every tensor by its canonical name (see DraftSpec), float8 dequantised; floats in `dtype`, integers as they are.

    Raises CkptError for a head whose findings say that it cannot serve.
    """
    spec.raise_errors()
    read = {name: to_torch(entry) for name, entry in spec.dequantised().tensors.items()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in read.items()}
