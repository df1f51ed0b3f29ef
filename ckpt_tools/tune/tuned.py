"""Giving a tuned head back: the tensors that moved in place of those that were read, for the writers of `drafts`."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..drafts.spec import DraftSpec, HeadTensor, plain
from ..engine.output import WriteFailed
from ..errors import error
from ..speculate.head import Head
from ..stores.dtypes import BY_NAME, FLOATS
from ..stores.safetensors_header import read_header

FILE = "tuned.safetensors"


def tuned_spec(spec: DraftSpec, head: Head, folder: Path) -> DraftSpec:
    """`spec` with the head's floating tensors as they are now, in the dtypes that the source stores.

    They are written to `folder`, which must last until the spec has been written elsewhere. What the head does not hold
    (a copy of the target's embedding, say) stays what it was.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    state = head.canonical_state()
    if unknown := state.keys() - spec.tensors.keys():
        raise ValueError(f"the head holds tensors that its source has not: {sorted(unknown)}")
    moved = {name: tensor for name, tensor in state.items() if spec.tensors[name].dtype in FLOATS}
    path = folder / FILE
    try:
        save_file({name: _stored(tensor, spec.tensors[name]) for name, tensor in moved.items()}, path)
    except SafetensorError as problem:
        raise error(
            WriteFailed,
            "write-failed",
            "the tuned tensors cannot be written",
            where=str(path),
            expected="room for the head twice: these tensors and what is made of them",
            actual=str(problem),
            fix="see what the system says; --resume goes on from the last checkpoint",
        ) from problem
    read = {name: plain(name, tensor, (path,)) for name, tensor in read_header(path, 0).items()}
    return replace(spec, tensors={**spec.tensors, **read})


def _stored(tensor: torch.Tensor, entry: HeadTensor) -> torch.Tensor:
    return tensor.detach().to("cpu", getattr(torch, BY_NAME[entry.dtype].torch)).contiguous().clone()


def digest(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter and buffer."""
    found = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        data = tensor.detach().cpu().contiguous()
        found.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        found.update(data.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
