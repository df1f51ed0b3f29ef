"""Writing the few pickles of the format by opcode, so that no torch class has to be imported to name it.

Values are bytes of finished pickle programs that leave one object on the stack (Python's pickletools documents them).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

NONE, TRUE, FALSE, EMPTY_TUPLE, STOP = b"N", b"\x88", b"\x89", b")", b"."
PROTOCOL = b"\x80\x02"


def program(value: bytes) -> bytes:
    return PROTOCOL + value + STOP


def glob(module: str, name: str) -> bytes:
    """A global by module and name."""
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def integer(value: int) -> bytes:
    """A non-negative integer."""
    if value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + struct.pack("<B", len(raw)) + raw


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def tuple_of(items: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"


def integers(values: Iterable[int]) -> bytes:
    return tuple_of(integer(value) for value in values)


def list_of(items: Iterable[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def dict_of(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def call(function: bytes, arguments: bytes) -> bytes:
    """REDUCE: function(*arguments)."""
    return function + arguments + b"R"


def instance(cls: bytes, state: bytes) -> bytes:
    """NEWOBJ without arguments, then BUILD: an object with this `__dict__` (or `__setstate__` argument)."""
    return cls + EMPTY_TUPLE + b"\x81" + state + b"b"


def attributes(**values: bytes) -> bytes:
    return dict_of((text(name), value) for name, value in values.items())


def persistent(pid: bytes) -> bytes:
    return pid + b"Q"
