"""Reading frames: where the bytes of a tensor lie in a `torch.save` archive, and objects without running code.

A frame is read at both ends, once each: its directory lies at one, the records before the payload at the other. What lies
elsewhere (a directory of many records) is read when it is asked for.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from functools import lru_cache
from math import prod
from reprlib import repr as shortened
from typing import Any, NamedTuple

from ...errors import CkptError, error
from ...mapping.arrangement import Shape
from ..dtypes import BY_NAME, BY_STORAGE, BY_TORCH
from .constructors import ITEMS
from .frames import CENTRAL, END, LIMIT, LOCAL, UNTYPED
from .pickles import Inert, Storage, loads

MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error)
EDGE = 1024  # bytes; torch's own directory takes about 600, and so do the records before a payload
ALIKE, SMALL = (
    256,
    4096,
)  # directories that are remembered, and their size: those of one dtype and shape are often the same
LARGEST = 64 << 20  # bytes of a directory or a pickle; a tensor frame has a kilobyte of each, Megatron's arguments some
MOST_DIMENSIONS, LARGEST_NUMBER = 64, 1 << 63
_LOCAL_SIZE, _CENTRAL_SIZE, _END_SIZE = (struct.calcsize(layout) for layout in (LOCAL, CENTRAL, END))


class Payload(NamedTuple):
    """What a tensor frame holds and where its bytes begin in the file."""

    dtype: str
    shape: Shape
    offset: int


class _Place(NamedTuple):
    """A record: where its local header begins in the frame, the bytes it stores, its compression (0: none)."""

    local: int
    size: int
    method: int


class _Window:
    """The bytes of a frame, `where` it is for messages."""

    __slots__ = ("fd", "head", "last", "length", "offset", "tail", "where")

    def __init__(self, fd: int, offset: int, length: int, where: str) -> None:
        self.fd, self.offset, self.length, self.where = fd, offset, length, where
        size = min(length, EDGE)
        self.last = length - size
        self.tail = self._pread(size, self.last)
        self.head = b""

    def read(self, size: int, at: int) -> bytes:
        """`size` bytes from byte `at` of the frame; raises CkptError if they are not there."""
        if at < 0 or at + size > self.length or size > LARGEST:
            raise _damaged(self.where, f"records inside {self.length} bytes", f"bytes {at} to {at + size}")
        if at >= self.last:
            data = self.tail[at - self.last : at - self.last + size]
        else:
            if not self.head and at + size <= EDGE:
                self.head = self._pread(min(self.length, EDGE), 0)
            data = self.head[at : at + size]
        return data if len(data) == size else self._pread(size, at)

    def _pread(self, size: int, at: int) -> bytes:
        data = os.pread(self.fd, size, self.offset + at)
        if len(data) != size:
            raise _damaged(self.where, f"{size} bytes at {self.offset + at}", f"{len(data)} bytes")
        return data


def _damaged(where: str, expected: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "frame-damaged",
        "a chunk is no torch.save archive",
        where=where,
        expected=expected,
        actual=actual,
        fix="the file is damaged or incomplete; restore it",
    )


def _check_inside(length: int, where: str, position: int) -> None:
    if position > length:
        raise _damaged(where, f"records inside {length} bytes", f"byte {position}")


def _records(window: _Window) -> dict[str, _Place]:
    """The archive's directory: records by their names without its root."""
    length, where = window.length, window.where
    if length < _END_SIZE:
        raise _damaged(where, "an archive", f"{length} bytes")
    end = window.read(_END_SIZE, length - _END_SIZE)
    signature, _, _, _, count, size, start, _ = struct.unpack(END, end)
    if signature != b"PK\x05\x06":
        raise _damaged(where, "an end-of-archive record", repr(signature))
    if LIMIT in (size, start) or count == 0xFFFF:
        (at,) = struct.unpack("<Q", window.read(12, length - _END_SIZE - 12)[:8])
        _check_inside(length, where, at)
        count, size, start = struct.unpack("<3Q", window.read(56, at)[32:])
    data = window.read(size, start)
    found, furthest = _directory(data, count) if size <= SMALL else _directory.__wrapped__(data, count)
    _check_inside(length, where, furthest)
    return found


@lru_cache(ALIKE)
def _directory(data: bytes, count: int) -> tuple[dict[str, _Place], int]:
    """Read only: `count` records of a central directory, and the largest of their places and sizes."""
    found, position = dict[str, _Place](), 0
    for _ in range(count):
        fields = struct.unpack_from(CENTRAL, data, position)
        method, stored, name_size, extra_size, local = fields[4], fields[9], fields[10], fields[11], fields[16]
        name_end = position + _CENTRAL_SIZE + name_size
        stored, local = _zip64(data[name_end : name_end + extra_size], stored, fields[8], local)
        name = data[position + _CENTRAL_SIZE : name_end].decode("utf-8", "replace")
        found[name.partition("/")[2]] = _Place(local, stored, method)
        position = name_end + extra_size + fields[12]
    return found, max((number for place in found.values() for number in place[:2]), default=0)


def _zip64(extra: bytes, stored: int, packed: int, local: int) -> tuple[int, int]:
    position = 0
    while position + 4 <= len(extra):
        tag, size = struct.unpack_from("<2H", extra, position)
        if tag == 1:
            wide = list(struct.unpack_from(f"<{size // 8}Q", extra, position + 4))
            stored = wide.pop(0) if stored == LIMIT else stored
            if packed == LIMIT:
                wide.pop(0)
            local = wide.pop(0) if local == LIMIT else local
        position += 4 + size
    return stored, local


def _data_offset(window: _Window, local: int) -> int:
    header = window.read(_LOCAL_SIZE, local)
    fields = struct.unpack(LOCAL, header)
    if fields[0] != b"PK\x03\x04":
        raise _damaged(window.where, "a local record", repr(fields[0]))
    return local + _LOCAL_SIZE + int(fields[9]) + int(fields[10])


def _pickled(window: _Window, records: dict[str, _Place]) -> bytes:
    place = records["data.pkl"]
    return window.read(place.size, _data_offset(window, place.local))


def read_object(fd: int, offset: int, length: int, where: str) -> tuple[Any, list[str]]:
    """The object of a frame without running code, and the foreign classes it names; tensors stay descriptions."""
    try:
        window = _Window(fd, offset, length, where)
        data = _pickled(window, _records(window))
    except MALFORMED as problem:
        raise _damaged(where, "data.pkl in an archive", repr(problem)) from problem
    return loads(data, where)


@lru_cache(ALIKE)
def _described(pickled: bytes) -> tuple[str, Shape, int]:
    """(dtype, shape, first element) of a tensor pickle; raises CkptError unless it is one row-major tensor."""
    where = ""  # cached over frames; read_payload adds the place
    value = loads(pickled, where)[0]
    if isinstance(value, Inert) and type(value).__qualname__ == "_rebuild_parameter":
        value = value.args[0]
    if not isinstance(value, Inert) or type(value).__qualname__ not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        raise _damaged(where, "a tensor", type(value).__qualname__)
    try:
        storage, first, shape, strides = value.args[:4]
        dtype = _dtype_of(storage, value.args[6:7])
        lists = isinstance(shape, ITEMS) and isinstance(strides, ITEMS) and len(shape) == len(strides)
        numbers = (first, *shape, *strides) if lists else ()
        if not lists or len(shape) > MOST_DIMENSIONS or not all(map(_is_size, numbers)):
            raise ValueError(f"{shortened(first)}, {shortened(shape)}, {shortened(strides)}")
    except MALFORMED as problem:
        raise _damaged(where, "a tensor of a known dtype", repr(problem)) from problem
    wanted = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    if prod(shape) and any(n > 1 and s != w for n, s, w in zip(shape, strides, wanted, strict=True)):
        raise error(
            CkptError,
            "chunk-strided",
            "a chunk is not stored row by row",
            where=where,
            expected=f"strides {wanted}",
            actual=f"{tuple(strides)}",
            fix="save the checkpoint again with contiguous tensors",
        )
    return dtype, tuple(shape), first


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST_NUMBER


def _dtype_of(storage: Storage, typed: tuple[Any, ...]) -> str:
    """The dtype of a typed storage, or of an untyped one with the `torch.dtype` that follows it."""
    kind = storage[1].__qualname__
    return BY_TORCH[typed[0].__qualname__].name if kind == UNTYPED[1] else BY_STORAGE[kind].name


def read_payload(fd: int, offset: int, length: int, where: str) -> Payload:
    """Where the bytes of a tensor frame lie; a few small reads, no payload."""
    try:
        window = _Window(fd, offset, length, where)
        records = _records(window)
        dtype, shape, first = _described(_pickled(window, records))
        local, stored, method = records["data/0"]
        start = _data_offset(window, local)
    except MALFORMED as problem:
        raise _damaged(where, "data.pkl and data/0 in an archive", repr(problem)) from problem
    except CkptError as problem:
        raise CkptError(*(replace(finding, where=finding.where or where) for finding in problem.findings)) from problem
    itemsize = BY_NAME[dtype].itemsize
    if method != 0 or (first + prod(shape)) * itemsize > stored or start + stored > length:
        raise _damaged(where, f"{dtype} {list(shape)} from element {first} on", f"{stored} bytes, method {method}")
    return Payload(dtype, shape, offset + start + first * itemsize)
