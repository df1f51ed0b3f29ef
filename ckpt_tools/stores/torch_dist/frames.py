"""Frames: the `torch.save` zip archives that `.distcp` files are made of.

Written as the minimal archive that `torch.load(weights_only=True)` accepts: stored records `data.pkl`, `byteorder`,
`version` and, for tensors, `data/0` at a 64-byte boundary with CRC 0 (torch builds its zip reader without CRC checks:
MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS), so that the payload can be moved by the kernel.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import replace
from functools import cache
from math import prod
from reprlib import repr as shortened
from typing import Any, NamedTuple

from ...errors import CkptError, error
from ...mapping.arrangement import Shape
from ..dtypes import BY_NAME, BY_STORAGE, BY_TORCH
from . import opcodes as op
from .constructors import ITEMS
from .pickles import Inert, Storage, loads

ALIGNMENT, PAGE = 64, 4096
LIMIT = 0xFFFF_FFFF
ROOT = "archive/"
DATA = b"archive/data/0"
LOCAL, CENTRAL, END = "<4s5H3I2H", "<4s6H3I5H2I", "<4s4H2IH"
_LOCAL_SIZE, _CENTRAL_SIZE, _END_SIZE = (struct.calcsize(layout) for layout in (LOCAL, CENTRAL, END))
_EXTRA = f"<2H{len(DATA)}s2sH"  # the end of a local header: sizes of name and extra field, both, the gap's own size
_EXTRA_SIZE = struct.calcsize(_EXTRA)
UNTYPED = ("torch.storage", "UntypedStorage")
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error)
DOS_DATE = 0x21  # 1980-01-01, the zip epoch


class Frame(NamedTuple):
    """Bytes in front, the number of zeros after them, the payload's size, bytes behind it."""

    head: bytes
    gap: int
    payload: int
    tail: bytes

    @property
    def size(self) -> int:
        return len(self.head) + self.gap + self.payload + len(self.tail)


class _Record(NamedTuple):
    name: bytes
    offset: int
    crc: int
    size: int


def _local(record: _Record) -> bytes:
    fields = (b"PK\x03\x04", 20, 0, 0, 0, DOS_DATE, record.crc, record.size, record.size, len(record.name), 0)
    return struct.pack(LOCAL, *fields) + record.name


def _central(record: _Record) -> bytes:
    sizes = (record.crc, record.size, record.size, len(record.name))
    fields = (b"PK\x01\x02", 20, 20, 0, 0, 0, DOS_DATE, *sizes, 0, 0, 0, 0, 0, record.offset)
    return struct.pack(CENTRAL, *fields) + record.name


def _end(count: int, size: int, offset: int) -> bytes:
    """The end of an archive: its directory has `count` records in `size` bytes and begins at `offset`."""
    return struct.pack(END, b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def _small_records(pickled: bytes) -> tuple[bytes, list[_Record]]:
    head, records = b"", []
    for name, data in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
        record = _Record((ROOT + name).encode(), len(head), zlib.crc32(data), len(data))
        head += _local(record) + data
        records.append(record)
    return head, records


def tensor_frame(dtype: str, shape: Shape, at: int = 0, phase: int | None = None) -> Frame:
    """The frame of a contiguous tensor, to lie at byte `at` of its file.

    The payload begins at a multiple of 64 of the file, or at `phase` modulo a page: bytes that keep their place within a
    page are copied by the kernel page by page, others at half the speed. Raises ValueError at 4 GiB, which chunking stays
    far below.
    """
    payload = prod(shape) * BY_NAME[dtype].itemsize
    if payload >= LIMIT:
        raise ValueError(f"a frame of {payload} bytes needs zip64; cut the chunk")
    before, central, count = _tensor_head(dtype, shape)
    start = at + len(before) + _EXTRA_SIZE
    gap = -start % ALIGNMENT if phase is None else (phase - start) % PAGE
    head = before + struct.pack(_EXTRA, len(DATA), 4 + gap, DATA, b"FB", gap)
    return Frame(head, gap, payload, central + _end(count, len(central), len(head) + gap + payload))


@cache
def _tensor_head(dtype: str, shape: Shape) -> tuple[bytes, bytes, int]:
    """What frames of this kind share: all before the sizes of the name and gap of `data/0`, the directory, its records."""
    head, records = _small_records(_tensor_pickle(dtype, shape))
    record = _Record(DATA, len(head), 0, prod(shape) * BY_NAME[dtype].itemsize)
    central = b"".join(_central(each) for each in (*records, record))
    return head + _local(record)[: -len(DATA) - 4], central, len(records) + 1


def object_frame(pickled: bytes) -> bytes:
    """The archive of an object without tensors, as `torch.save` would write it."""
    head, records = _small_records(pickled)
    central = b"".join(_central(record) for record in records)
    return head + central + _end(len(records), len(central), len(head))


def _tensor_pickle(dtype: str, shape: Shape) -> bytes:
    """`torch._utils._rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())`, or v3 with the dtype at the end.

    v3 is for dtypes without a storage class of their own; it counts an untyped storage in bytes.
    """
    kind = BY_NAME[dtype]
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    storage = op.glob("torch", kind.storage) if kind.storage else op.glob(*UNTYPED)
    extent = op.integer(prod(shape) * (1 if kind.storage else kind.itemsize))
    pid = op.tuple_of((op.text("storage"), storage, op.text("0"), op.text("cpu"), extent))
    hooks = op.call(op.glob("collections", "OrderedDict"), op.EMPTY_TUPLE)
    arguments = [op.persistent(pid), op.integer(0), op.integers(shape), op.integers(strides), op.FALSE, hooks]
    if not kind.storage:
        arguments.append(op.glob("torch", kind.torch))
    function = "_rebuild_tensor_v2" if kind.storage else "_rebuild_tensor_v3"
    return op.program(op.call(op.glob("torch._utils", function), op.tuple_of(arguments)))


class Payload(NamedTuple):
    """What a tensor frame holds and where its bytes begin in the file."""

    dtype: str
    shape: Shape
    offset: int


TAIL_GUESS = 1024


def _pread(fd: int, size: int, offset: int, where: str) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise _damaged(where, f"{size} bytes at {offset}", f"{len(data)} bytes")
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


def _check_inside(length: int, where: str, *positions: int) -> None:
    if max(positions) > length:
        raise _damaged(where, f"records inside {length} bytes", f"byte {max(positions)}")


def _records(fd: int, offset: int, length: int, where: str) -> dict[str, tuple[int, int, int]]:
    """The central directory: record name without its root -> (local header offset in the file, size, method)."""
    if length < _END_SIZE:
        raise _damaged(where, "an archive", f"{length} bytes")
    tail = _pread(fd, min(length, TAIL_GUESS), offset + length - min(length, TAIL_GUESS), where)
    signature, _, _, _, count, size, start, _ = struct.unpack(END, tail[-_END_SIZE:])
    if signature != b"PK\x05\x06":
        raise _damaged(where, "an end-of-archive record", repr(signature))
    if LIMIT in (size, start) or count == 0xFFFF:
        (at,) = struct.unpack("<Q", tail[-_END_SIZE - 12 : -_END_SIZE - 4])
        _check_inside(length, where, at)
        wide = _pread(fd, 56, offset + at, where)
        count, size, start = struct.unpack("<3Q", wide[32:56])
    _check_inside(length, where, start + size)
    directory, found, position = _pread(fd, size, offset + start, where), {}, 0
    for _ in range(count):
        fields = struct.unpack_from(CENTRAL, directory, position)
        method, stored, name_size, extra_size, local = fields[4], fields[9], fields[10], fields[11], fields[16]
        name_end = position + _CENTRAL_SIZE + name_size
        extra = directory[name_end : name_end + extra_size]
        stored, local = _zip64(extra, stored, fields[8], local)
        _check_inside(length, where, local, stored)
        name = directory[position + _CENTRAL_SIZE : name_end].decode("utf-8", "replace")
        found[name.partition("/")[2]] = (offset + local, stored, method)
        position = name_end + extra_size + fields[12]
    return found


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


def _data_offset(fd: int, local: int, where: str) -> int:
    header = _pread(fd, _LOCAL_SIZE, local, where)
    fields = struct.unpack(LOCAL, header)
    if fields[0] != b"PK\x03\x04":
        raise _damaged(where, "a local record", repr(fields[0]))
    return local + _LOCAL_SIZE + int(fields[9]) + int(fields[10])


def read_object(fd: int, offset: int, length: int, where: str) -> tuple[Any, list[str]]:
    """The object of a frame without running code, and the foreign classes it names; tensors stay descriptions."""
    try:
        records = _records(fd, offset, length, where)
        local, size, _ = records["data.pkl"]
        data = _pread(fd, size, _data_offset(fd, local, where), where)
    except MALFORMED as problem:
        raise _damaged(where, "data.pkl in an archive", repr(problem)) from problem
    return loads(data, where)


@cache
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
        if not lists or any(type(n) is not int or n < 0 for n in (first, *shape, *strides)):
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


def _dtype_of(storage: Storage, typed: tuple[Any, ...]) -> str:
    """The dtype of a typed storage, or of an untyped one with the `torch.dtype` that follows it."""
    kind = storage[1].__qualname__
    return BY_TORCH[typed[0].__qualname__].name if kind == UNTYPED[1] else BY_STORAGE[kind].name


def read_payload(fd: int, offset: int, length: int, where: str) -> Payload:
    """Where the bytes of a tensor frame lie; a few small reads, no payload."""
    try:
        records = _records(fd, offset, length, where)
        local, size, _ = records["data.pkl"]
        pickled = _pread(fd, size, _data_offset(fd, local, where), where)
        dtype, shape, first = _described(pickled)
        local, stored, method = records["data/0"]
        start = _data_offset(fd, local, where)
    except MALFORMED as problem:
        raise _damaged(where, "data.pkl and data/0 in an archive", repr(problem)) from problem
    except CkptError as problem:
        raise CkptError(*(replace(finding, where=finding.where or where) for finding in problem.findings)) from problem
    itemsize = BY_NAME[dtype].itemsize
    if method != 0 or (first + prod(shape)) * itemsize > stored or start + stored > offset + length:
        raise _damaged(where, f"{prod(shape) * itemsize} stored bytes", f"{stored} bytes, method {method}")
    return Payload(dtype, shape, start + first * itemsize)
