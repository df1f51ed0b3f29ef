"""Writing frames: the `torch.save` zip archives that `.distcp` files are made of.

Written as the minimal archive that `torch.load(weights_only=True)` accepts: stored records `data.pkl`, `byteorder`,
`version` and, for tensors, `data/0` at a 64-byte boundary with CRC 0 (torch builds its zip reader without CRC checks:
MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS), so that the payload can be moved by the kernel.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from math import prod
from typing import NamedTuple

from ...mapping.arrangement import Shape
from ..dtypes import BY_NAME
from . import opcodes as op

ALIGNMENT, PAGE = 64, 4096
LIMIT = 0xFFFF_FFFF
ROOT = "archive/"
DATA = b"archive/data/0"
LOCAL, CENTRAL, END = "<4s5H3I2H", "<4s6H3I5H2I", "<4s4H2IH"
_EXTRA = f"<2H{len(DATA)}s2sH"  # the end of a local header: sizes of name and extra field, both, the gap's own size
_EXTRA_SIZE = struct.calcsize(_EXTRA)
UNTYPED = ("torch.storage", "UntypedStorage")
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
