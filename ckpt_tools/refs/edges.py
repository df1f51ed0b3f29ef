"""Beginnings and ends of torch-dist frames whose bytes are on the Hub: what says where a frame's tensor lies.

They are written to their places in the files with holes that stand for those on the Hub, where they are found the next time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .headers import EPOCH, THREADS
from .ranges import Ranges, ranges_of

HEAD, TAIL = 4096, 2048  # bytes: records before the payload; the archive's directory behind it
NEAR = 1 << 15  # a gap up to which two edges are one request
FIRST, LAST, LAST_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22  # a zip archive's first and last record
Frame = tuple[str, int, int]  # file, offset, length


def fill_edges(folder: Path, frames: Iterable[Frame], whole: bool = False) -> None:
    """Fetch the edges of frames below `folder`, or all of them, unless they are here; does nothing for local files."""
    by_file: dict[str, list[tuple[int, int]]] = {}
    for file, offset, length in frames:
        by_file.setdefault(file, []).append((offset, length))
    for file, places in by_file.items():
        if (source := ranges_of(folder / file)) is not None:
            _fill(folder / file, source, places, whole)


def _fill(path: Path, source: Ranges, places: list[tuple[int, int]], whole: bool) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        wanted: list[tuple[int, int]] = []
        for offset, length in places:
            if not whole and _is_here(handle, offset, length):
                continue
            if whole or length <= HEAD + TAIL + NEAR:
                wanted.append((offset, offset + length))
            else:
                wanted += [(offset, offset + HEAD), (offset + length - TAIL, offset + length)]
        stretches = [(start, min(stop, source.size)) for start, stop in _joined(wanted) if start < source.size]

        def fetch(stretch: tuple[int, int]) -> None:
            position, stop = stretch
            for data in source.chunks(position, stop - position):
                position += os.pwrite(handle, data, position)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, stretches))
    finally:
        os.close(handle)
    os.utime(path, EPOCH)


def _is_here(handle: int, offset: int, length: int) -> bool:
    last = os.pread(handle, len(LAST), offset + length - LAST_SIZE)
    return last == LAST and os.pread(handle, len(FIRST), offset) == FIRST


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches in order, those that touch or nearly touch as one."""
    found: list[list[int]] = []
    for start, stop in sorted(stretches):
        if found and start - found[-1][1] <= NEAR:
            found[-1][1] = max(found[-1][1], stop)
        else:
            found.append([start, stop])
    return [(start, stop) for start, stop in found]
