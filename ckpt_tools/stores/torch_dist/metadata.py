"""The `.metadata` file: which tensors exist, how chunks tile them, and where each chunk's frame lies.

A pickle of `torch.distributed.checkpoint.metadata.Metadata`; field names are those of its dataclasses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
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
    torch_name = dtype.__qualname__ if isinstance(dtype, type) and issubclass(dtype, Inert) else _texts([dtype])[0]
    (shape,) = _shapes([item.size])
    boxes = _boxes(name, item.chunks, stored)
    if {len(box.origin) for box in boxes} - {len(shape)} or {len(box.shape) for box in boxes} - {len(shape)}:
        raise ValueError(f"the chunks of {name} have another rank than its shape {list(shape)}")
    return Entry(name, BY_TORCH[torch_name].name, shape, boxes)


def _boxes(name: str, chunks: Sequence[Any], stored: dict[tuple[str, Shape | None], Stored]) -> tuple[Box, ...]:
    origins, shapes = _shapes([chunk.offsets for chunk in chunks]), _shapes([chunk.sizes for chunk in chunks])
    return tuple(Box(origin, shape, stored[name, origin]) for origin, shape in zip(origins, shapes, strict=True))


def _places(data: Any) -> dict[tuple[str, Shape | None], Stored]:
    """Where the frame of every chunk and object lies; raises ValueError for a file outside of the directory."""
    infos = list(data.values())
    for name in _texts({info.relative_path for info in infos}):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} is not inside the directory")
    _check_sizes([number for info in infos for number in (info.offset, info.length)])
    names = _texts([index.fqn for index in data])
    origins = iter(_shapes([index.offset for index in data if index.offset is not None]))
    return {
        (name, None if index.offset is None else next(origins)): Stored(info.relative_path, info.offset, info.length)
        for name, (index, info) in zip(names, data.items(), strict=True)
    }


# A large model has tens of thousands of chunks: names and numbers are checked all at once.


def _texts(values: Collection[Any]) -> list[str]:
    if wrong := set(map(type, values)) - {str}:
        raise TypeError(f"{shortened(next(v for v in values if type(v) in wrong))} is no name")
    return list(values)


def _shapes(values: Sequence[Any]) -> list[Shape]:
    if wrong := [value for value in values if not isinstance(value, ITEMS)]:
        raise ValueError(f"{shortened(wrong[0])} are no sizes")
    shapes = [tuple(value) for value in values]
    _check_sizes(list(chain.from_iterable(shapes)))
    return shapes


def _check_sizes(numbers: Sequence[Any]) -> None:
    if set(map(type, numbers)) - {int} or (numbers and min(numbers) < 0):
        wrong = next(number for number in numbers if type(number) is not int or number < 0)
        raise ValueError(f"{shortened(wrong)} is no size")
