"""The `.metadata` file: which tensors exist, how chunks tile them, and where each chunk's frame lies.

A pickle of `torch.distributed.checkpoint.metadata.Metadata`; field names are those of its dataclasses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...errors import CkptError, error
from ...mapping.arrangement import Shape
from ...report import listed
from ..dtypes import BY_TORCH
from .pickles import Inert, loads

DCP = "torch.distributed.checkpoint.metadata"


class Stored(NamedTuple):
    """A frame: file name relative to the directory, byte offset, length."""

    file: str
    offset: int
    length: int


class Box(NamedTuple):
    """One chunk of a tensor and its frame."""

    origin: Shape
    shape: Shape
    stored: Stored


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the checkpoint; `dtype` is a safetensors name."""

    name: str
    dtype: str
    shape: Shape
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """Tensors and byte objects (`_extra_state`, common state, RNG) of a checkpoint."""

    tensors: dict[str, Entry]
    objects: dict[str, Stored]


class _State:
    """Stand-in for a dataclass of the format: its pickled attributes."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"raw": state})


class _Index:
    """MetadataIndex. Torch hashes it by (fqn, offset); as a key of a pickled mapping it is there once, so identity will do."""

    fqn: str
    offset: Shape | None = None  # torch leaves a default out of the pickled attributes


def _kind(name: str) -> type[_State]:
    return type(name, (_State,), {})


def _bare(name: str) -> type:
    """A stand-in of which there are very many: the unpickler fills its attributes itself, without a call."""
    return type(name, (), {})


_Tensor, _Bytes = _kind("TensorStorageMetadata"), _kind("BytesStorageMetadata")
_KNOWN: dict[tuple[str, str], Any] = {
    (DCP, "Metadata"): _kind("Metadata"),
    (DCP, "TensorStorageMetadata"): _Tensor,
    (DCP, "BytesStorageMetadata"): _Bytes,
    (DCP, "ChunkStorageMetadata"): _bare("ChunkStorageMetadata"),
    (DCP, "TensorProperties"): _kind("TensorProperties"),
    (DCP, "MetadataIndex"): _Index,
    (DCP, "StorageMeta"): _kind("StorageMeta"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _bare("_StorageInfo"),
    # mcore 0.15 subclasses Metadata under this name
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"): _kind("MCoreMetadata"),
}


def parse(data: bytes, where: str) -> tuple[Contents, list[str]]:
    """The contents of a `.metadata` pickle and the foreign classes it names; raises CkptError if it is damaged."""
    value, foreign = loads(data, where, _KNOWN)
    try:
        stored = _places(value.storage_data)
        tensors: dict[str, Entry] = {}
        objects: dict[str, Stored] = {}
        for name, item in value.state_dict_metadata.items():
            if isinstance(item, _Tensor):
                tensors[name] = _entry(name, item, stored)
            else:
                objects[name] = stored[name, None]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise error(
            CkptError,
            "metadata-damaged",
            ".metadata does not describe a checkpoint",
            where=where,
            expected="tensors whose chunks all have a place in storage_data",
            actual=f"{type(problem).__name__}: {problem}",
            fix="the file is damaged; restore it",
        ) from problem
    return Contents(tensors, objects), foreign


def _entry(name: str, item: Any, stored: dict[tuple[str, Shape | None], Stored]) -> Entry:
    properties = item.properties
    dtype = properties.raw[0] if hasattr(properties, "raw") else properties.dtype
    torch_name = dtype.__qualname__ if isinstance(dtype, type) and issubclass(dtype, Inert) else str(dtype)
    shape = _sizes(item.size)
    boxes = _boxes(name, item.chunks, stored)
    if {len(box.origin) for box in boxes} - {len(shape)} or {len(box.shape) for box in boxes} - {len(shape)}:
        raise ValueError(f"the chunks of {name} have another rank than its shape {list(shape)}")
    return Entry(name, BY_TORCH[torch_name].name, shape, boxes)


def _boxes(name: str, chunks: list[Any], stored: dict[tuple[str, Shape | None], Stored]) -> tuple[Box, ...]:
    """The chunks of a tensor; a large model has tens of thousands, so their numbers are checked all at once."""
    origins, shapes = [tuple(chunk.offsets) for chunk in chunks], [tuple(chunk.sizes) for chunk in chunks]
    _check_sizes(list(chain.from_iterable(origins + shapes)))
    return tuple(Box(origin, shape, stored[name, origin]) for origin, shape in zip(origins, shapes, strict=True))


def _sizes(values: Iterable[Any]) -> Shape:
    sizes = tuple(values)
    _check_sizes(sizes)
    return sizes


def _check_sizes(sizes: Sequence[Any]) -> None:
    if set(map(type, sizes)) - {int} or (sizes and min(sizes) < 0):
        raise ValueError(f"{listed(map(str, sizes))} are no sizes")


def _places(data: Any) -> dict[tuple[str, Shape | None], Stored]:
    """Where the frame of every chunk and object lies; raises ValueError for a file outside of the directory."""
    for name in {info.relative_path for info in data.values()}:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} is not inside the directory")
    _check_sizes([info.offset for info in data.values()])
    _check_sizes([info.length for info in data.values()])
    return {
        (index.fqn, None if index.offset is None else tuple(index.offset)): Stored(
            info.relative_path, info.offset, info.length
        )
        for index, info in data.items()
    }
