"""Writing `.metadata`: the pickle of DCP's Metadata, by opcode, for hundreds of thousands of chunks in a moment.

Everything that recurs (classes, field names, file names) is defined once in front and popped; after that, records are
concatenations of recalls. Tensor names are defined where the tensors are described, which is before their chunks' places.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from ...mapping.arrangement import Shape
from ..dtypes import BY_NAME
from . import opcodes as op
from .metadata import DCP, Entry, Stored

NEW = b")\x81"  # EMPTY_TUPLE NEWOBJ: an instance without arguments
FIELDS, BUILD = b"}(", b"ub"
POP, TUPLE1, REDUCE = b"0", b"\x85", b"R"


class Constants:
    """Programs on the memo, by label; `preamble` defines them all and leaves the stack empty."""

    def __init__(self, programs: dict[str, bytes]) -> None:
        self.recall: dict[str, bytes] = {}
        parts = []
        for number, (label, program) in enumerate(programs.items()):
            index = struct.pack("<I", number)
            parts.append(program + b"r" + index + POP)
            self.recall[label] = b"j" + index
        self.preamble = b"".join(parts)
        self.count = len(programs)


CLASSES = ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex")
KEYS = ("fqn", "offset", "index", "relative_path", "length", "offsets", "sizes", "properties", "size", "chunks")


def serialise(tensors: list[Entry], objects: dict[str, Stored]) -> bytes:
    """The `.metadata` of these tensors and objects, loadable by every torch that knows the classes (2.1 and later)."""
    files = {box.stored.file for entry in tensors for box in entry.boxes} | {place.file for place in objects.values()}
    constants = Constants(
        {
            "Size": op.glob("torch", "Size"),
            "StorageInfo": op.glob("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            **{name: op.glob(DCP, name) for name in CLASSES},
            **{f".{name}": op.text(name) for name in KEYS},
            **{f"/{name}": op.text(name) for name in sorted(files)},
            **{f"dtype {name}": _properties(name) for name in sorted({entry.dtype for entry in tensors})},
        }
    )
    names = [entry.name for entry in tensors] + list(objects)
    recalls = {name: b"j" + struct.pack("<I", constants.count + number) for number, name in enumerate(names)}
    state = [_defined(name, recalls) + _tensor(entry, constants) for name, entry in zip(names, tensors, strict=False)]
    empty = constants.recall["BytesStorageMetadata"] + NEW + FIELDS + BUILD
    state += [_defined(name, recalls) + empty for name in objects]
    fields = (
        op.text("state_dict_metadata"), b"}(", *state, b"u",
        op.text("planner_data"), op.NONE,
        op.text("storage_data"), b"}(", *_places(tensors, objects, recalls, constants), b"u",
        op.text("storage_meta"), op.NONE,
        op.text("version"), op.text("1.0.0"),
    )  # fmt: skip
    body = op.glob(DCP, "Metadata") + NEW + FIELDS + b"".join(fields) + BUILD
    return op.program(constants.preamble + body)


def _properties(dtype: str) -> bytes:
    """TensorProperties of a plain tensor; its `__setstate__` takes a tuple."""
    layout = op.call(op.glob("torch.serialization", "_get_layout"), op.tuple_of((op.text("torch.strided"),)))
    contiguous = op.call(op.glob(DCP, "_MEM_FORMAT_ENCODING"), op.tuple_of((op.integer(0),)))
    raw = op.tuple_of((op.glob("torch", BY_NAME[dtype].torch), layout, op.FALSE, contiguous, op.FALSE))
    return op.instance(op.glob(DCP, "TensorProperties"), raw)


def _defined(name: str, recalls: dict[str, bytes]) -> bytes:
    return op.text(name) + b"r" + recalls[name][1:]


@lru_cache(maxsize=1 << 16)
def _numbers(shape: Shape) -> bytes:
    return op.integers(shape) + TUPLE1 + REDUCE


def _tensor(entry: Entry, constants: Constants) -> bytes:
    recall = constants.recall
    size = recall["Size"]
    start = recall["ChunkStorageMetadata"] + NEW + FIELDS + recall[".offsets"] + size
    middle = recall[".sizes"] + size
    chunks = [start + _numbers(box.origin) + middle + _numbers(box.shape) + BUILD for box in entry.boxes]
    return b"".join(
        (
            recall["TensorStorageMetadata"], NEW, FIELDS,
            recall[".properties"], recall[f"dtype {entry.dtype}"],
            recall[".size"], size, _numbers(entry.shape),
            recall[".chunks"], b"](", *chunks, b"e",
            BUILD,
        )
    )  # fmt: skip


def _places(
    tensors: list[Entry], objects: dict[str, Stored], recalls: dict[str, bytes], constants: Constants
) -> list[bytes]:
    """MetadataIndex -> _StorageInfo for every chunk and object."""
    recall = constants.recall
    start = recall["MetadataIndex"] + NEW + FIELDS + recall[".fqn"]
    at = recall[".offset"] + recall["Size"]
    end = recall[".index"] + op.NONE + BUILD
    info = recall["StorageInfo"] + NEW + FIELDS + recall[".relative_path"]
    offset, length = recall[".offset"], recall[".length"]

    def place(stored: Stored) -> bytes:
        numbers = offset + op.integer(stored.offset) + length + op.integer(stored.length)
        return info + recall[f"/{stored.file}"] + numbers + BUILD

    found = [
        start + recalls[entry.name] + at + _numbers(box.origin) + end + place(box.stored)
        for entry in tensors
        for box in entry.boxes
    ]
    nowhere = recall[".offset"] + op.NONE
    return found + [start + recalls[name] + nowhere + end + place(stored) for name, stored in objects.items()]
