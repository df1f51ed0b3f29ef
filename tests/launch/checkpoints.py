"""Checkpoints without weights for preflight: a config with an index, and a `.metadata` that torch's own classes pickle."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ckpt_tools.families import family_of
from ckpt_tools.families.config import Fields
from ckpt_tools.mapping.rules import Naming, hf_shapes, megatron_shapes

FRAME = 1000  # bytes that a frame has beside its payload, more or less


def write_target(folder: Path, config: Mapping[str, Any], mtp: int | None = None) -> Path:
    """config.json and an index: what a Hub download without weights has. `mtp` other than declared leaves layers out."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = Fields(config, "test")
    family = family_of(fields)
    count = max(fields.mtp_layers(), int(family.undeclared_mtp)) if mtp is None else mtp
    names = hf_shapes(family.table(family.dims(fields), count, family.dims(fields).vocab_size, family.defaults()))
    fields.done()
    (folder / "config.json").write_text(json.dumps(config))
    places = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write_stored(
    folder: Path,
    config: Mapping[str, Any],
    mtp: int,
    padded: int,
    variants: Mapping[str, str] | None = None,
    more: Mapping[str, tuple[int, ...]] | None = None,
) -> Path:
    """A torch-dist directory as a trainer has it, with holes for weights: one chunk a tensor, config and tracker file.

    `more` are tensors beside the model's, by shape.
    """
    fields = Fields(config, "test")
    family = family_of(fields)
    dims = family.dims(fields)
    table = family.table(dims, mtp, padded, {**family.defaults(), **(variants or {})})
    shapes: dict[str, tuple[int, ...]] = {}
    naming = Naming(stacked=dims.uniform)
    for rule in table.rules:
        shapes |= megatron_shapes(rule, naming.template(rule))
    root = folder / "release"
    (root / "hf").mkdir(parents=True)
    (root / "hf" / "config.json").write_text(json.dumps(config))
    write_metadata(root, {**shapes, **(more or {})})
    torch.save({"args": argparse.Namespace(), "checkpoint_version": 3.0}, root / "common.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    return folder


def write_metadata(root: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    entries, places, offset = {}, {}, 0
    for name, shape in shapes.items():
        start = torch.Size([0] * len(shape))
        chunk = ChunkStorageMetadata(offsets=start, sizes=torch.Size(shape))
        entries[name] = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size(shape), [chunk])
        length = prod(shape) * 2 + FRAME
        places[MetadataIndex(name, start)] = _StorageInfo("__0_0.distcp", offset, length)
        offset += length
    (root / ".metadata").write_bytes(pickle.dumps(Metadata(entries, storage_data=places)))
    with (root / "__0_0.distcp").open("wb") as stream:
        stream.truncate(offset)
