"""Small checkpoints of both kinds, made by code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.program import Program
from ckpt_tools.stores.base import Image
from ckpt_tools.stores.dtypes import DTYPES
from ckpt_tools.stores.hf_folder import INDEX
from ckpt_tools.stores.torch_dist import layout
from ckpt_tools.stores.torch_dist.layout import Planned
from ckpt_tools.stores.torch_dist.reader import TRACKER

TORCH = {dtype.name: getattr(torch, dtype.torch) for dtype in DTYPES}


def random_tensor(dtype: str, shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    """Random bytes of a dtype (a bool is 0 or 1), so that nan and every exponent occur."""
    itemsize = torch.empty(0, dtype=TORCH[dtype]).element_size()
    count = int(np.prod(shape)) * itemsize
    if count == 0:
        return torch.empty(tuple(shape), dtype=TORCH[dtype])
    data = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count, np.uint8).copy())
    if dtype == "BOOL":
        return (data % 2).bool().reshape(tuple(shape))
    return data.view(TORCH[dtype]).reshape(tuple(shape))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def hf_folder(
    root: Path, shards: Mapping[str, Mapping[str, Sequence[int]]], index: bool = True, **changes: str
) -> Path:
    """BF16 tensors by shard with an index; `changes` map a tensor (dots as __) to another file in the index only."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text("{}")
    total, weight_map = 0, {}
    for file, tensors in shards.items():
        made = {name: torch.zeros(tuple(shape), dtype=torch.bfloat16) for name, shape in tensors.items()}
        save_file(made, root / file, {"format": "pt"})
        total += sum(2 * t.numel() for t in made.values())
        weight_map |= dict.fromkeys(made, file)
    weight_map |= {name.replace("__", "."): file for name, file in changes.items()}
    if index:
        (root / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return root


def write_image(image: Image, root: Path) -> Path:
    execute(Program([], image, []), root)
    return root


STACK = Planned("decoder.layers.fc1.weight", "BF16", (3,), (8, 4), (4,))
EMBEDDING = Planned("embedding.weight", "BF16", (), (10, 4))
STATES = [f"decoder.layers.fc1._extra_state/shard_{i}_3" for i in range(3)]


def torch_dist(
    root: Path,
    tensors: Sequence[Planned] = (STACK, EMBEDDING),
    common: Mapping[str, Any] | None = None,
    max_file: int = 1 << 30,
) -> Path:
    """An iteration directory; every element of it is zero."""
    return write_image(layout.lay_out(list(tensors), STATES, common or {"checkpoint_version": 3.0}, max_file), root)


def with_tracker(root: Path, said: str | bytes | None, *iterations: str) -> Path:
    for name in iterations:
        torch_dist(root / name)
    if said is not None:
        (root / TRACKER).write_bytes(said if isinstance(said, bytes) else said.encode())
    return root
