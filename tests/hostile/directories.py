"""torch-dist directories to damage, and what opening them says; `.metadata` written by opcode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools.errors import CkptError, Finding
from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.metadata import DCP, Box, Contents, parse
from ckpt_tools.stores.torch_dist.metadata_writer import serialise
from ckpt_tools.stores.torch_dist.reader import METADATA, open_checkpoint
from tests.stores.make import STACK, torch_dist

Change = Callable[[Contents], Contents]


def with_metadata(root: Path, change: Callable[[tuple[Box, ...]], tuple[Box, ...]], name: str = STACK.name) -> Path:
    """A directory whose `.metadata` says something else about one tensor."""
    torch_dist(root)
    contents = parse((root / METADATA).read_bytes(), "")[0]
    entry = contents.tensors[name]
    tensors = contents.tensors | {name: replace(entry, boxes=change(entry.boxes))}
    (root / METADATA).write_bytes(serialise(list(tensors.values()), contents.objects))
    return root


def only(root: Path) -> Finding:
    (finding,) = open_checkpoint(root).report.findings
    return finding


def refused(root: Path) -> Finding:
    with pytest.raises(CkptError) as caught:
        open_checkpoint(root)
    return caught.value.findings[0]


def metadata_of(**info: bytes) -> bytes:
    """`.metadata` of one 1-D tensor, with some field replaced by another pickle program."""
    fields = {
        "fqn": op.text("t"),
        "offset": op.integers((0,)),
        "relative_path": op.text("__0_0.distcp"),
        "position": op.integer(0),
        "length": op.integer(10),
        "size": op.integers((4,)),
        "sizes": op.integers((4,)),
        "offsets": op.integers((0,)),
        "dtype": op.glob("torch", "bfloat16"),
    } | info
    properties = op.instance(
        op.glob(DCP, "TensorProperties"), op.tuple_of((fields["dtype"], op.NONE, op.FALSE, op.NONE, op.FALSE))
    )
    chunk = op.instance(
        op.glob(DCP, "ChunkStorageMetadata"), op.attributes(offsets=fields["offsets"], sizes=fields["sizes"])
    )
    tensor = op.instance(
        op.glob(DCP, "TensorStorageMetadata"),
        op.attributes(properties=properties, size=fields["size"], chunks=op.list_of([chunk])),
    )
    index = op.instance(op.glob(DCP, "MetadataIndex"), op.attributes(fqn=fields["fqn"], offset=fields["offset"]))
    place = op.instance(
        op.glob("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        op.attributes(relative_path=fields["relative_path"], offset=fields["position"], length=fields["length"]),
    )
    state = op.attributes(
        state_dict_metadata=op.dict_of([(op.text("t"), tensor)]), storage_data=op.dict_of([(index, place)])
    )
    return op.program(op.instance(op.glob(DCP, "Metadata"), state))
