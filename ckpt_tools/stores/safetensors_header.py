"""The safetensors header: 8 bytes little-endian length, JSON, then the data (huggingface/safetensors, README "Format").

Read here rather than through the library because the engine needs byte addresses, and checked as strictly as it does.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from ..errors import Finding
from ..mapping.arrangement import Shape
from .base import Chunk, Tensor
from .dtypes import BY_NAME, STORED

MAX_HEADER = 100_000_000
ALIGNMENT, PAGE = 8, 4096


class BadHeader(Exception):
    """Why a file is no safetensors file."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _bad(
    path: Path, code: str, what: str, expected: str, actual: str, fix: str = "download or write it again"
) -> BadHeader:
    return BadHeader(Finding(code, what, where=str(path), expected=expected, actual=actual, fix=fix))


def read_header(path: Path, file: int) -> dict[str, Tensor]:
    """The tensors of one file by name, as file number `file`; raises BadHeader and OSError. Reads no tensor bytes."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(MAX_HEADER, size - 8):
            raise _bad(
                path,
                "file-truncated",
                "the header does not fit into the file",
                f"a header of at most {max(0, size - 8):,} bytes",
                f"{length:,} bytes announced" if len(prefix) == 8 else f"a file of {size} bytes",
                "incomplete download? fetch the file again",
            )
        raw = stream.read(length)
    try:
        entries = json.loads(raw)
        if not _keys_are_unique(raw, entries):
            entries = json.loads(raw, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as problem:
        raise _bad(path, "header-invalid", "the header is not JSON", "a JSON object", str(problem)) from problem
    if not isinstance(entries, dict):
        raise _bad(path, "header-invalid", "the header is not an object", "a JSON object", type(entries).__name__)
    entries.pop("__metadata__", None)
    return _tensors(path, file, entries, 8 + length, size)


def _keys_are_unique(raw: bytes, entries: Any) -> bool:
    """Whether every tensor left one entry with its three keys; a repeated key, which JSON swallows, shows in the counts."""
    if not isinstance(entries, dict):
        return True
    tensors = len(entries) - ("__metadata__" in entries)
    keys = (b'"dtype"', b'"shape"', b'"data_offsets"')
    return raw.count(b'"__metadata__"') <= 1 and all(raw.count(key) == tensors for key in keys)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _bad(path, "header-invalid", "a key occurs twice in the header", "unique names", "a repeated name")
    return found


def _tensors(path: Path, file: int, entries: dict[str, Any], base: int, size: int) -> dict[str, Tensor]:
    """The tensors of a file whose data begin at byte `base`, which must lie one after another up to its `size`."""
    found: dict[str, Tensor] = {}
    extents: list[tuple[int, int, str]] = []
    numbers: list[int] = []
    for name, entry in entries.items():
        try:
            dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            nbytes, origin = _extent(dtype, shape)
            wrong = nbytes != stop - start
        except (KeyError, TypeError, ValueError) as problem:
            raise _bad_entry(path, name, entry) from problem
        if wrong:
            raise _bad_entry(path, name, entry)
        numbers += (*shape, start, stop)
        extents.append((start, stop, name))
        found[name] = Tensor(name, dtype, shape, (Chunk(file, base + start, origin, shape),))
    if numbers and (set(map(type, numbers)) != {int} or min(numbers) < 0):
        raise next(filter(None, (_bad_numbers(path, name, entry) for name, entry in entries.items())))
    _check_extents(path, extents, base, size)
    return found


def _bad_numbers(path: Path, name: str, entry: Any) -> BadHeader | None:
    numbers = (*entry["shape"], *entry["data_offsets"])
    if all(type(number) is int and number >= 0 for number in numbers):
        return None
    return _bad(path, "header-invalid", f"{name} has numbers that cannot be", "integers of 0 or more", repr(entry))


def _bad_entry(path: Path, name: str, entry: Any) -> BadHeader:
    """What is wrong with an entry whose bytes cannot be counted or are counted wrongly."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        known = dtype in STORED
    except (KeyError, TypeError, ValueError):
        return _bad(path, "header-invalid", f"{name} has no proper entry", "dtype, shape, data_offsets", repr(entry))
    if not known:
        return _bad(path, "dtype-unknown", f"{name} has an unknown dtype", ", ".join(sorted(STORED)), str(dtype))
    if problem := _bad_numbers(path, name, entry):
        return problem
    expected = f"{prod(shape) * BY_NAME[dtype].itemsize:,} bytes for {dtype} {shape}"
    what = f"{name}: shape and data_offsets disagree"
    return _bad(path, "header-invalid", what, expected, f"{stop - start:,} bytes")


@lru_cache(maxsize=1 << 12)
def _extent(dtype: str, shape: Shape) -> tuple[int, Shape]:
    """Bytes of a tensor, and its origin; raises KeyError if no header has that dtype."""
    if dtype not in STORED:
        raise KeyError(dtype)
    return prod(shape) * BY_NAME[dtype].itemsize, (0,) * len(shape)


def _check_extents(path: Path, extents: list[tuple[int, int, str]], base: int, size: int) -> None:
    """Tensors (first byte, end, name) lie one after another without holes, and the file ends where they end."""
    position = 0
    for start, stop, name in sorted(extents):
        if start != position:
            what = f"{name} overlaps its neighbour or leaves a hole"
            expected, actual = f"data at byte {base + position:,}", f"byte {base + start:,}"
            raise _bad(path, "header-invalid", what, expected, actual)
        position = stop
    if base + position != size:
        short = size < base + position
        raise _bad(
            path,
            "file-truncated" if short else "file-too-long",
            "the file is shorter than its header says" if short else "bytes follow the last tensor",
            f"{base + position:,} bytes",
            f"{size:,} bytes",
            "incomplete download? fetch the file again",
        )


def header_bytes(tensors: list[tuple[str, str, Shape]], phase: int | None = None) -> bytes:
    """Prefix and JSON of a file with these (name, dtype, shape) in this order, padded with spaces as the library pads.

    With a `phase` the data begins there modulo a page (see stores.torch_dist.frames.tensor_frame).
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        end = position + prod(shape) * BY_NAME[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % ALIGNMENT if phase is None else (phase - 8 - len(raw)) % PAGE)
    return len(raw).to_bytes(8, "little") + raw
