"""The `.metadata` file: which tensors exist, how chunks tile them, and where each chunk's frame lies.

A pickle of `torch.distributed.checkpoint.metadata.Metadata`; field names are those of its dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from reprlib import repr as shortened
from typing import Any, NamedTuple

from ...errors import CkptError, error
from ...mapping.arrangement import Shape
from ..dtypes import BY_TORCH
from .constructors import ITEMS, Sealed
from .pickles import Inert, loads

DCP = "torch.distributed.checkpoint.metadata"


class Stored(NamedTuple):
    """A frame: file name relative to the directory, byte offset, length."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Box:
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


class _State(metaclass=Sealed):
    """Stand-in for a dataclass of the format: its pickled attributes."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"raw": state})


class _Index(metaclass=Sealed):
    """MetadataIndex. Torch hashes it by (fqn, offset); as a key of a pickled mapping it is there once, so identity will do."""

    fqn: str
    offset: Shape | None = None  # torch leaves a default out of the pickled attributes


def _kind(name: str) -> Sealed:
    return Sealed(name, (_State,), {})


def _bare(name: str) -> Sealed:
    """A stand-in of which there are very many: the unpickler fills its attributes itself, without a call."""
    return Sealed(name, (), {})


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
    files: set[str] = set()
    try:
        stored = {
            (_text(index.fqn), None if index.offset is None else _sizes(index.offset)): _place(info, files)
            for index, info in value.storage_data.items()
        }
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
    torch_name = dtype.__qualname__ if isinstance(dtype, type) and issubclass(dtype, Inert) else _text(dtype)
    boxes = tuple(
        Box(_sizes(chunk.offsets), _sizes(chunk.sizes), stored[name, tuple(chunk.offsets)]) for chunk in item.chunks
    )
    shape = _sizes(item.size)
    if any(len(box.origin) != len(shape) or len(box.shape) != len(shape) for box in boxes):
        raise ValueError(f"the chunks of {name} have another rank than its shape {list(shape)}")
    return Entry(name, BY_TORCH[torch_name].name, shape, boxes)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shortened(value)} is no name")
    return value


def _sizes(values: Any) -> Shape:
    if not isinstance(values, ITEMS) or set(map(type, values)) - {int} or (values and min(values) < 0):
        raise ValueError(f"{shortened(values)} are no sizes")
    return tuple(values)


def _place(info: Any, files: set[str]) -> Stored:
    """A frame's place; `files` are names that were found to be inside the directory."""
    if info.relative_path not in files:
        path = PurePosixPath(info.relative_path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} is not inside the directory")
        files.add(info.relative_path)
    return Stored(info.relative_path, *_sizes((info.offset, info.length)))
