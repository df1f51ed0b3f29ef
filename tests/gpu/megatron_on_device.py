"""megatron-core loads a torch-dist into a device's memory and saves it: `python -m tests.gpu.megatron_on_device FROM TO cuda`.

A process of its own: it joins a process group of one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def whole(source: Path, device: str) -> dict[str, ShardedTensor]:
    """A sharded tensor, whole and NaN where it can be, for every tensor that the checkpoint holds.

    A second name for the same bytes is left out: Megatron would save them twice.
    """
    metadata = FileSystemReader(source).read_metadata()
    places: dict[str, set[tuple[str, int]]] = {}
    for index, info in metadata.storage_data.items():
        places.setdefault(index.fqn, set()).add((info.relative_path, info.offset))
    names = {frozenset(place): name for name, place in reversed(places.items())}
    found = {}
    for name in names.values():
        entry = metadata.state_dict_metadata[name]
        if isinstance(entry, TensorStorageMetadata):
            empty = torch.empty(entry.size, dtype=entry.properties.dtype, device=device)
            empty.fill_(float("nan") if empty.is_floating_point() else 0)
            found[name] = ShardedTensor.from_rank_offsets(name, empty, replica_id=0)
    return found


def main(source: Path, target: Path, device: str) -> None:
    if device == "cpu":  # the saver waits for copies from the device, and counts failures on it
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    with tempfile.TemporaryDirectory() as meeting:
        torch.distributed.init_process_group(backend, init_method=f"file://{meeting}/point", rank=0, world_size=1)
        loaded = dist_checkpointing.load({"model": whole(source, device)}, str(source))
        tensors = loaded.pop("model")
        wrong = [name for name, tensor in tensors.items() if tensor.device.type != device or tensor.isnan().any()]
        assert not wrong, f"not loaded into {device}: {wrong}"
        model = {name: ShardedTensor.from_rank_offsets(name, tensor, replica_id=0) for name, tensor in tensors.items()}
        target.mkdir(parents=True)
        dist_checkpointing.save({"model": model, **loaded}, str(target))
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3])
