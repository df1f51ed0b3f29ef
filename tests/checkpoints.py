"""Checkpoints as their owners read and write them: safetensors' library on one side, torch's DCP on the other.

Nothing here asks ckpt_tools.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

Tensors = dict[str, torch.Tensor]

INDEX = "model.safetensors.index.json"


def hf_tensors(folder: Path) -> Tensors:
    """Every tensor of every safetensors file of a folder."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = load_file(path)
        assert not part.keys() & found.keys()
        found |= part
    return found


def holders(folder: Path) -> dict[str, str]:
    """Which file really holds each tensor."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as stream:
            found |= dict.fromkeys(stream.keys(), path.name)
    return found


def write_index(folder: Path, weight_map: dict[str, str], total: int | None = None) -> None:
    size = sum(t.numel() * t.element_size() for t in hf_tensors(folder).values()) if total is None else total
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map})
    (folder / INDEX).write_text(text)


@contextmanager
def changed(path: Path) -> Iterator[Tensors]:
    """The tensors of one safetensors file, written back after the block."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    yield tensors
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


@contextmanager
def changed_config(folder: Path) -> Iterator[dict[str, Any]]:
    """config.json as a dict, written back after the block."""
    config = config_of(folder)
    yield config
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def iteration(folder: Path) -> Path:
    """The directory with `.metadata`."""
    return folder if (folder / ".metadata").is_file() else folder / "release"


def megatron_tensors(folder: Path) -> Tensors:
    """Every tensor of a torch-dist directory, loaded by torch.distributed.checkpoint."""
    reader = FileSystemReader(iteration(folder))
    state: Tensors = {
        name: torch.full(tuple(item.size), 77, dtype=item.properties.dtype)
        for name, item in reader.read_metadata().state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "torch.distributed is disabled": that is what no_dist asks for
        load(dict[str, Any](state), storage_reader=reader, no_dist=True)  # fills the tensors in place
    return state


def chunks_of(folder: Path, name: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of the chunks of one tensor, as torch reads them from `.metadata`."""
    item = FileSystemReader(iteration(folder)).read_metadata().state_dict_metadata[name]
    assert isinstance(item, TensorStorageMetadata)
    return [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in item.chunks]


def write_torch_dist(folder: Path, tensors: Tensors, **arguments: Any) -> Path:
    """A torch-dist directory as torch writes it, one frame per tensor, with Megatron's `common.pt`."""
    writer = FileSystemWriter(folder, single_file_per_rank=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict[str, Any](tensors), storage_writer=writer, no_dist=True)
    torch.save({"args": argparse.Namespace(**arguments), "checkpoint_version": 3.0}, folder / "common.pt")
    return folder


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bytes: nan equals nan, 0.0 does not equal -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def assert_same(found: Tensors, expected: Tensors) -> None:
    """Two sets of tensors are the same names with the same bits."""
    assert found.keys() == expected.keys()
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


def dequantised(tensors: Tensors, block: tuple[int, int] | str, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """A float8 checkpoint (`block` of rows and columns, or "channel") without quantisation, by torch."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float8_e4m3fn:
            if not name.endswith((".weight_scale", ".weight_scale_inv")):
                found[name] = tensor
            continue
        if block == "channel":
            scale = tensors[f"{name}_scale"].float()
        else:
            rows, columns = block
            grid = tensors[f"{name}_scale_inv"].float()
            scale = grid.repeat_interleave(int(rows), 0).repeat_interleave(int(columns), 1)
            scale = scale[: tensor.shape[0], : tensor.shape[1]]
        found[name] = (tensor.float() * scale).to(dtype)
    return found


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
