"""Tensors of a `torch.save` file (`pytorch_model.bin`, `training_state.pt`) by their places in it; no code is run."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import CkptError, NotFound, error
from ...stores.base import Chunk, Tensor
from ...stores.dtypes import BY_STORAGE
from ...stores.torch_dist.constructors import ITEMS
from ...stores.torch_dist.pickles import Inert, Storage, loads

LOCAL_HEADER = 30
REBUILD, PARAMETER = "_rebuild_tensor_v2", "_rebuild_parameter"
Places = Mapping[str, tuple[int, int]]

MOST_PICKLE = 64 << 20  # names and shapes of a head are kilobytes; a deflated record may say anything
BROKEN = (  # what zipfile raises for archives that lie
    *(zipfile.BadZipFile, KeyError, struct.error, OSError, ValueError),
    *(NotImplementedError, RuntimeError, EOFError, OverflowError, zlib.error),
)


def read_torch_file(path: Path) -> tuple[Mapping[str, Any], dict[str, tuple[int, int]]]:
    """The dictionary that was saved, its tensors as descriptions, and (offset, bytes) of every storage by key."""
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if records["data.pkl"].file_size > MOST_PICKLE:
                raise ValueError(f"a description of {records['data.pkl'].file_size:,} bytes")
            value, _ = loads(archive.read(records["data.pkl"]), str(path))
            storages = {
                name.removeprefix("data/"): (_start(stream, info), info.file_size)
                for name, info in records.items()
                if name.startswith("data/") and info.compress_type == zipfile.ZIP_STORED
            }
    except BROKEN as problem:
        raise error(
            NotFound,
            "torch-file-unreadable",
            f"{path.name} is no torch.save archive",
            where=str(path),
            expected="a zip archive, as torch 1.6 and later write",
            actual=str(problem),
            fix="incomplete download? fetch it again; an older file: load it with torch and save it as safetensors",
        ) from problem
    if not isinstance(value, Mapping):
        raise error(
            NotFound,
            "torch-file-unreadable",
            f"{path.name} holds no dictionary of tensors",
            where=str(path),
            expected="a state dict",
            actual=type(value).__name__,
            fix="save the state dict of the head",
        )
    return value, storages


def _start(stream: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored record begin."""
    stream.seek(info.header_offset)
    name, extra = struct.unpack("<2H", stream.read(LOCAL_HEADER)[-4:])
    return info.header_offset + LOCAL_HEADER + int(name) + int(extra)


def tensors_of(state: Mapping[str, Any], storages: Places, file: int, path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, in file number `file`; entries that are no tensors are left out."""
    return {
        str(name): _tensor(str(name), value, storages, file, path) for name, value in state.items() if _is_tensor(value)
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Inert) and type(value).__qualname__ in (REBUILD, PARAMETER)


def _tensor(name: str, value: Inert, storages: Places, file: int, path: Path) -> Tensor:
    if type(value).__qualname__ == PARAMETER:
        value = value.args[0]
    try:
        storage, first, shape, strides = value.args[:4]
        assert isinstance(storage, Storage) and isinstance(shape, ITEMS) and isinstance(strides, ITEMS)
        dtype = BY_STORAGE[storage[1].__qualname__]
        start, size = storages[storage[2]]
        shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
        wanted = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        if any(n > 1 and s != w for n, s, w in zip(shape, strides, wanted, strict=True)):
            raise ValueError(f"strides {strides}, not row by row")
        if first < 0 or (first + prod(shape)) * dtype.itemsize > size:
            raise ValueError(f"{list(shape)} from element {first} in {size} bytes")
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise error(
            CkptError,
            "tensor-unreadable",
            f"{name} cannot be read where it lies",
            where=str(path),
            expected="a contiguous tensor of a known dtype, stored uncompressed",
            actual=repr(problem),
            fix="load the file with torch and save it as safetensors",
        ) from problem
    return Tensor(name, dtype.name, shape, (Chunk(file, start + first * dtype.itemsize, (0,) * len(shape), shape),))
