#!/usr/bin/env python3
"""The do-it-yourself way, as a yardstick: load everything with one library, save everything with the other.

Nothing is renamed, fused or padded, so it is a lower bound of any converter that holds the model as tensors.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, load, save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def to_torch_dist(source: Path, target: Path) -> None:
    """safetensors.torch.load_file of every shard, torch.distributed.checkpoint.save of all."""
    tensors: dict[str, Any] = {}
    for path in sorted(source.glob("*.safetensors")):
        tensors |= load_file(path)
    save(tensors, storage_writer=FileSystemWriter(target, single_file_per_rank=True, sync_files=False), no_dist=True)


def to_hf(source: Path, target: Path) -> None:
    """torch.distributed.checkpoint.load of everything, safetensors.torch.save_file of all in one file."""
    reader = FileSystemReader(next(source.rglob(".metadata")).parent)
    tensors: dict[str, Any] = {
        name: torch.empty(tuple(item.size), dtype=item.properties.dtype)
        for name, item in reader.read_metadata().state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, no_dist=True)
    target.mkdir()
    save_file(tensors, target / "model.safetensors")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("to-torch-dist", "to-hf"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    (to_torch_dist if options.way == "to-torch-dist" else to_hf)(options.source, options.target)


if __name__ == "__main__":
    main()
