#!/usr/bin/env python3
"""The physical limits of a machine: how fast files are written, with and without reaching the disk, and how `cp` does.

Writes one file of --size several times below --workdir; prints the median of each figure in GB/s of wall time, and the CPU
seconds a GB costs. Cold means that the file's pages were dropped from the page cache (posix_fadvise) before. As in
bench_convert.py, every step that writes finds memory freed a moment ago: a file of the size was written and deleted, untimed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_convert import gigabytes

BLOCK = os.urandom(8 << 20)


def write(path: Path, size: int, sync: bool) -> None:
    """A new file of that size, block after block."""
    with path.open("xb", buffering=0) as stream:
        for _ in range(size // len(BLOCK)):
            stream.write(BLOCK)
        if sync:
            os.fsync(stream.fileno())


def drop(path: Path) -> None:
    """Put a file out of the page cache."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> None:
    with path.open("rb", buffering=0) as stream:
        view = memoryview(bytearray(len(BLOCK)))
        while stream.readinto(view):
            pass


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    start, spent = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - start, cpu() - spent


def one_repeat(folder: Path, size: int) -> dict[str, tuple[float, float]]:
    """Every figure once; nothing is left behind."""
    source, target = folder / "source", folder / "target"
    found: dict[str, tuple[float, float]] = {}

    def step(name: str, work: Callable[[], None], cold: bool = False) -> None:
        os.sync()
        write(target, size, sync=False)
        target.unlink()
        if cold:
            drop(source)
        found[name] = measured(work)
        target.unlink(missing_ok=True)

    write(source, size, sync=True)
    step("write", lambda: write(target, size, sync=False))
    step("write and fsync", lambda: write(target, size, sync=True))
    step("cp, warm", lambda: copy(source, target))
    step("read, cold", lambda: read(source), cold=True)
    step("cp, cold", lambda: copy(source, target), cold=True)
    source.unlink()
    return found


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=gigabytes, default="2GB", help="twice that is needed on disk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workdir", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench_machine_", dir=options.workdir) as folder:
        repeats = [one_repeat(Path(folder), options.size) for _ in range(options.repeats)]
    rows = {}
    for name in repeats[0]:
        walls, cpus = zip(*(repeat[name] for repeat in repeats), strict=True)
        speeds = sorted(options.size / wall / 1e9 for wall in walls)
        rows[name] = {
            "gb_per_s": statistics.median(speeds),
            "min": speeds[0],
            "max": speeds[-1],
            "cpu_s_per_gb": statistics.median(cpus) / options.size * 1e9,
        }
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'':<18}{'GB/s':>7}{'min..max':>14}{'CPU s/GB':>10}")
    for name, row in rows.items():
        spread = f"{row['min']:>7.2f}..{row['max']:<5.2f}"
        print(f"{name:<18}{row['gb_per_s']:>7.2f}{spread:>14}{row['cpu_s_per_gb']:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
