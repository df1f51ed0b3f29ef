"""What a pickle claims to hold, checked before the unpickler believes it.

CPython's unpickler allocates first: its memo as large as the highest index (eight bytes times twice the index: 32 GB for ten
bytes of pickle), a bytearray as large as its length says, where a failed allocation also writes a stray "SystemError:
deallocated bytearray object has exported buffers" to stderr (PyByteArray_FromStringAndSize frees an object whose export count
is not set yet; seen with 3.11). `pickletools.genops` would find both; it takes 7 s for the metadata of a DeepSeek-V3, this
0.3 s.
"""

from __future__ import annotations

import pickletools
import re

STOP, PUT, LONG_PUT, LONG1 = b".", b"p", b"r", b"\x8a"
LENGTH_BYTES = {-2: 1, -3: 4, -4: 4, -5: 8}  # pickletools' TAKEN_FROM_ARGUMENT1, 4, 4U, 8U
LINE = -1
SHORT_LONGS = 10  # bytes; what integers up to 64 bits take
REMEMBERED = 3  # bytes that an object and the opcode that remembers it take at least


def _opcodes(size: int) -> bytes:
    """The opcodes whose argument has this size, as pickletools counts it."""
    found = (op.code.encode("latin-1") for op in pickletools.opcodes if (op.arg.n if op.arg else 0) == size)
    return b"".join(code for code in found if code not in (STOP, LONG_PUT))


def _plain() -> re.Pattern[bytes]:
    """Runs of opcodes that claim nothing: those without an argument and with one of a fixed size, and short integers."""
    ways = [b"[%s]++" % re.escape(_opcodes(0))]
    ways += [b"[%s].{%d}" % (re.escape(_opcodes(size)), size) for size in (4, 1, 2, 8)]
    ways += [re.escape(LONG1 + bytes([size])) + b".{%d}" % size for size in range(SHORT_LONGS)]
    return re.compile(b"(?s:%s)*+" % b"|".join(ways))


PLAIN = _plain()
COUNTED = {code: width for kind, width in LENGTH_BYTES.items() for code in _opcodes(kind)}
LINES = {code: 2 if code in b"ci" else 1 for code in _opcodes(LINE)}


def overclaimed(data: bytes) -> str:
    """What the pickle claims beyond its own size, or "". Whatever else is wrong is left for the unpickler to find."""
    at, size = 0, len(data)
    while True:
        found = PLAIN.match(data, at)
        at = found.end() if found else at
        if at >= size:
            return ""
        code = data[at]
        if width := COUNTED.get(code):
            start = at + 1 + width
            length = int.from_bytes(data[at + 1 : start], "little")
            if start <= size < start + length:
                return f"an object of {length:,} bytes at byte {at:,} of {size:,}"
            at = start + length
        elif code == LONG_PUT[0]:
            if (index := int.from_bytes(data[at + 1 : at + 5], "little")) * REMEMBERED > at:
                return f"{index:,} remembered objects at byte {at:,} of {size:,}"
            at += 5
        elif code in LINES:
            end = at
            for _ in range(LINES[code]):
                end = data.find(b"\n", end + 1)
                if end < 0:
                    return ""
            if code == PUT[0] and _number(data[at + 1 : end]) * REMEMBERED > at:
                return f"{_number(data[at + 1 : end]):,} remembered objects at byte {at:,} of {size:,}"
            at = end + 1
        else:  # the end, or no opcode
            return ""


def _number(digits: bytes) -> int:
    """0 for what is no number: the unpickler refuses it."""
    try:
        return int(digits)
    except ValueError:
        return 0
