"""The tensors of a head as torch tensors."""

from __future__ import annotations

import torch

from ..drafts.spec import DraftSpec, HeadTensor
from ..errors import CkptError, error
from ..quantised import FLOAT8
from ..report import listed
from ..stores.dtypes import BY_NAME


def to_torch(entry: HeadTensor) -> torch.Tensor:
    """One tensor, in the dtype in which it is stored."""
    kind = getattr(torch, BY_NAME[entry.dtype].torch)
    return torch.frombuffer(bytearray(entry.read()), dtype=kind).reshape(entry.shape)


def read_head(spec: DraftSpec, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every tensor under its canonical name (see DraftSpec); floats in `dtype`, integers as they are.

    Raises CkptError for a head whose findings say that it cannot serve, and for a quantised one.
    """
    spec.raise_errors()
    quantised = [name for name, entry in spec.tensors.items() if entry.dtype in FLOAT8]
    if quantised:
        raise error(
            CkptError,
            "head-quantised",
            "the head is stored in float8, which is not run here",
            where=str(spec.source),
            expected="bfloat16, float16 or float32",
            actual=listed(quantised, 3),
            fix="dequantise the model: `ckpt-tools convert` to torch-dist and back, then extract the head",
        )
    read = {name: to_torch(entry) for name, entry in spec.tensors.items()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in read.items()}
