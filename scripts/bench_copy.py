#!/usr/bin/env python3
"""Time how the kernel copies a file's bytes to another place of another file: why engine/files.py aligns and buffers.

Each case copies the same bytes from a warm source into a new file, the cases in random order, repeated; printed are median
wall and CPU time as ratios to copying the file from its beginning to the beginning, as `cp` does.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PAGE, SPLICE = 4096, 64 << 10
BUFFER = memoryview(bytearray(1 << 20))
Copy = Callable[[int, int, int, int, int], None]


def kernel(source: int, target: int, position: int, offset: int, length: int) -> None:
    """copy_file_range alone."""
    while length:
        done = os.copy_file_range(source, target, length, position, offset)
        length, position, offset = length - done, position + done, offset + done


def aligned(source: int, target: int, position: int, offset: int, length: int) -> None:
    """copy_file_range after a first run that brings the destination to a multiple of 64 KiB."""
    first = -offset % SPLICE
    kernel(source, target, position, offset, first)
    kernel(source, target, position + first, offset + first, length - first)


def buffered(source: int, target: int, position: int, offset: int, length: int) -> None:
    """pread and pwrite of 1 MiB at a time, aligned in the destination."""
    while length:
        run = min(length, -offset % SPLICE or len(BUFFER))
        done = os.preadv(source, [BUFFER[:run]], position)
        os.pwrite(target, BUFFER[:done], offset)
        length, position, offset = length - done, position + done, offset + done


CASES: dict[str, tuple[int, int, Copy]] = {
    "from 0 to 0 (cp)": (0, 0, kernel),
    "a page on": (PAGE, 2 * PAGE, kernel),
    "a page on, aligned to 64 KiB first": (PAGE, 2 * PAGE, aligned),
    "another place in a page": (1000, 2000, kernel),
    "another place in a page, aligned to 64 KiB first": (1000, 2000, aligned),
    "another place in a page, buffered": (1000, 2000, buffered),
}


def timed(source: int, target: Path, length: int, case: str) -> tuple[float, float]:
    """Wall and CPU seconds of one case into a new file."""
    position, offset, copy = CASES[case]
    with target.open("xb") as stream:
        stream.truncate(offset + length)
        wall, cpu = time.perf_counter(), time.process_time()
        copy(source, stream.fileno(), position, offset, length)
        spent = time.perf_counter() - wall, time.process_time() - cpu
    target.unlink()
    return spent


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Time copies between places of files.")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workdir", type=Path)
    options = parser.parse_args(argv)
    length = options.megabytes << 20
    spent: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory(dir=options.workdir) as folder:
        path = Path(folder) / "source"
        with path.open("xb") as stream:
            for _ in range(options.megabytes + 1):
                stream.write(os.urandom(1 << 20))
        source = os.open(path, os.O_RDONLY)
        for _ in range(options.repeats):
            for case in random.sample(list(CASES), len(CASES)):
                spent[case].append(timed(source, Path(folder) / "target", length, case))
        os.close(source)
    base = [statistics.median(column) for column in zip(*spent["from 0 to 0 (cp)"], strict=True)]
    print(f"{'copy':<52}{'wall':>7}{'CPU':>7}")
    for case, runs in spent.items():
        wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{case:<52}{wall / base[0]:>7.2f}{cpu / base[1]:>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
