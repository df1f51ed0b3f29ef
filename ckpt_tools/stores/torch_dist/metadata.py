"""The `.metadata` file: which tensors exist, how chunks tile them, and where each chunk's frame lies.

A pickle of `torch.distributed.checkpoint.metadata.Metadata`; field names are those of its dataclasses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...errors import CkptError, error
from ...mapping.arrangement import Shape
from ..dtypes import BY_NAME, BY_TORCH
from . import opcodes as op
from .pickles import Inert, loads

DCP = "torch.distributed.checkpoint.metadata"
STORAGE_INFO = ("torch.distributed.checkpoint.filesystem", "_StorageInfo")


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


class _State:
    """Stand-in for a dataclass of the format: its pickled attributes."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"raw": state})


class _Index(_State):
    """MetadataIndex: equal and hashed by (fqn, offset), as in torch."""

    fqn: str
    offset: Shape | None = None  # torch leaves a default out of the pickled attributes

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Index) and (self.fqn, self.offset) == (other.fqn, other.offset)


def _kind(name: str) -> type[_State]:
    return type(name, (_State,), {})


_Tensor, _Bytes = _kind("TensorStorageMetadata"), _kind("BytesStorageMetadata")
_KNOWN: dict[tuple[str, str], Any] = {
    (DCP, "Metadata"): _kind("Metadata"),
    (DCP, "TensorStorageMetadata"): _Tensor,
    (DCP, "BytesStorageMetadata"): _Bytes,
    (DCP, "ChunkStorageMetadata"): _kind("ChunkStorageMetadata"),
    (DCP, "TensorProperties"): _kind("TensorProperties"),
    (DCP, "MetadataIndex"): _Index,
    (DCP, "StorageMeta"): _kind("StorageMeta"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _kind("_StorageInfo"),
    # mcore 0.15 subclasses Metadata under this name
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"): _kind("MCoreMetadata"),
}


def parse(data: bytes, where: str) -> tuple[Contents, list[str]]:
    """The contents of a `.metadata` pickle and the foreign classes it names; raises CkptError if it is damaged."""
    value, foreign = loads(data, where, _KNOWN)
    try:
        stored = {
            (index.fqn, None if index.offset is None else tuple(index.offset)): _place(info)
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
    torch_name = dtype.__qualname__ if isinstance(dtype, type) and issubclass(dtype, Inert) else str(dtype)
    boxes = tuple(
        Box(_sizes(chunk.offsets), _sizes(chunk.sizes), stored[name, tuple(chunk.offsets)]) for chunk in item.chunks
    )
    shape = _sizes(item.size)
    if any(len(box.origin) != len(shape) or len(box.shape) != len(shape) for box in boxes):
        raise ValueError(f"the chunks of {name} have another rank than its shape {list(shape)}")
    return Entry(name, BY_TORCH[torch_name].name, shape, boxes)


def _sizes(values: Iterable[Any]) -> Shape:
    sizes = tuple(values)
    if any(type(n) is not int or n < 0 for n in sizes):
        raise ValueError(f"{list(sizes)} are no sizes")
    return sizes


def _place(info: Any) -> Stored:
    path = PurePosixPath(info.relative_path)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is not inside the directory")
    return Stored(info.relative_path, *_sizes((info.offset, info.length)))


def serialise(tensors: list[Entry], objects: dict[str, Stored]) -> bytes:
    """The `.metadata` of these tensors and objects, loadable by every torch that knows the classes (2.1 and later).

    Programs are built in the order in which they are written: a memo recall must follow its definition.
    """
    memo = op.Memo()
    state = [(memo(op.text(entry.name)), _tensor_metadata(memo, entry)) for entry in tensors]
    state += [
        (memo(op.text(name)), op.instance(memo(op.glob(DCP, "BytesStorageMetadata")), op.dict_of(())))
        for name in objects
    ]
    storage = [
        (_index(memo, entry.name, _size(memo, box.origin)), _info(memo, box.stored))
        for entry in tensors
        for box in entry.boxes
    ]
    storage += [(_index(memo, name, op.NONE), _info(memo, place)) for name, place in objects.items()]
    fields = op.attributes(
        state_dict_metadata=op.dict_of(state),
        planner_data=op.NONE,
        storage_data=op.dict_of(storage),
        storage_meta=op.NONE,
        version=op.text("1.0.0"),
    )
    return op.program(op.instance(op.glob(DCP, "Metadata"), fields))


def _size(memo: op.Memo, shape: Shape) -> bytes:
    return memo(op.call(memo(op.glob("torch", "Size")), op.tuple_of((op.integers(shape),))))


def _keyed(memo: op.Memo, **values: bytes) -> bytes:
    return op.dict_of((memo(op.text(name)), value) for name, value in values.items())


def _tensor_metadata(memo: op.Memo, entry: Entry) -> bytes:
    cls = memo(op.glob(DCP, "TensorStorageMetadata"))
    layout = op.call(op.glob("torch.serialization", "_get_layout"), op.tuple_of((op.text("torch.strided"),)))
    contiguous = op.call(op.glob(DCP, "_MEM_FORMAT_ENCODING"), op.tuple_of((op.integer(0),)))
    raw = op.tuple_of((op.glob("torch", BY_NAME[entry.dtype].torch), layout, op.FALSE, contiguous, op.FALSE))
    properties = memo(op.instance(op.glob(DCP, "TensorProperties"), raw))
    size = _size(memo, entry.shape)
    chunks = op.list_of([_chunk(memo, box) for box in entry.boxes])
    return op.instance(cls, _keyed(memo, properties=properties, size=size, chunks=chunks))


def _chunk(memo: op.Memo, box: Box) -> bytes:
    cls = memo(op.glob(DCP, "ChunkStorageMetadata"))
    return op.instance(cls, _keyed(memo, offsets=_size(memo, box.origin), sizes=_size(memo, box.shape)))


def _index(memo: op.Memo, name: str, offset: bytes) -> bytes:
    # `offset` was on the memo before: chunks stand in front of the storage entries
    cls = memo(op.glob(DCP, "MetadataIndex"))
    return op.instance(cls, _keyed(memo, fqn=memo(op.text(name)), offset=offset, index=op.NONE))


def _info(memo: op.Memo, place: Stored) -> bytes:
    cls = memo(op.glob(*STORAGE_INFO))
    file = memo(op.text(place.file))
    return op.instance(
        cls, _keyed(memo, relative_path=file, offset=op.integer(place.offset), length=op.integer(place.length))
    )
