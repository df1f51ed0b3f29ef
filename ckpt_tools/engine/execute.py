"""Executing a program with threads: nobody waits for anybody, memory stays bounded whatever the model."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ..refs.ranges import ranges_of
from .cast import one_thread_each, transformed
from .codecs import Decode, Encode, run_decode, run_encode
from .files import Handles, copy_range, read_exactly, write_exactly
from .moves import Move
from .program import GATHER, SMALL, Gather, Program, Quantise, Task
from .quantise import quantised
from .tiling import tiles

BUFFER = GATHER + SMALL
TRANSFORM = 1 << 20  # source bytes of a transformed tile: its float32 copies are several times larger
THREADS = min(8, os.cpu_count() or 1)
REMOTE_THREADS = 8  # they wait for the network, not for a core

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall and CPU seconds of the writing phase."""

    write_s: float
    write_cpu_s: float


class _Worker:
    def __init__(self, program: Program, root: Path, writing: list[threading.Lock]) -> None:
        self.writing = writing
        self.sources = Handles(program.sources, os.O_RDONLY)
        self.targets = Handles([root / name for name, _ in program.image.files], os.O_RDWR)
        self.buffer = memoryview(bytearray(BUFFER))

    def run(self, task: Task) -> int:
        if isinstance(task, Gather):
            self._gather(task)
        elif isinstance(task, Quantise):
            self._quantise(task)
        elif isinstance(task, Decode):
            run_decode(task, self.sources, self.targets)
        elif isinstance(task, Encode):
            run_encode(task, self.sources, self.targets)
        elif task.rows == 1 and task.cast is None and (remote := self.sources.remote(task.source_file)) is not None:
            position = task.target
            for data in remote.chunks(task.source, task.width):
                write_exactly(self.targets[task.target_file], memoryview(data), position)
                position += len(data)
        elif task.rows == 1 and task.cast is None:
            target = self.targets[task.target_file]
            with self.writing[task.target_file]:  # the kernel lets one thread write to a file; the others would spin
                copy_range(self.sources, task.source_file, task.source, target, task.target, task.width, self.buffer)
        else:
            self._tiled(task)
        return task.nbytes

    def _gather(self, task: Gather) -> None:
        view, position = self.buffer[: task.nbytes], 0
        for piece in task.pieces:
            run = view[position : position + piece.length]
            if piece.data is None:
                read_exactly(self.sources, piece.source_file, run, piece.source)
            else:
                run[:] = piece.data
            position += piece.length
        write_exactly(self.targets[task.file], view, task.offset)

    def _quantise(self, task: Quantise) -> None:
        weight, scale = self.targets[task.weight.file], self.targets[task.scale.file]
        for band in quantised(task, self.sources):
            write_exactly(weight, band.values, task.weight.offset + band.value_offset)
            write_exactly(scale, band.scales, task.scale.offset + band.scale_offset)

    def _tiled(self, move: Move) -> None:
        """Strided or casting moves in tiles of rows; a row wider than the buffer in tiles of columns."""
        for tile in tiles(move, TRANSFORM if move.cast else len(self.buffer)):
            raw = self.buffer[: tile.span]
            read_exactly(self.sources, tile.source_file, raw, tile.source // tile.per_byte)
            target, width = self.targets[tile.target_file], tile.target_width
            if tile.cast:
                data, stride = transformed(tile, raw, self.sources), width
            else:
                data, stride = raw, tile.source_stride
            if stride == width == tile.target_stride:
                write_exactly(target, data, tile.target)
                continue
            for row in range(tile.rows):
                write_exactly(target, data[row * stride : row * stride + width], tile.target + row * tile.target_stride)

    def close(self) -> None:
        self.sources.close()
        self.targets.close()


class Share(NamedTuple):
    """What one process does of a program: `tasks` by their number, telling `finished` of each.

    Files that are there already are left as they are. The `first` process also writes what is no task. `threads` 0 leaves
    their number to the machine.
    """

    tasks: list[tuple[int, Task]]
    finished: Callable[[int, Task], None]
    first: bool = True
    threads: int = 0


def _spread(tasks: Iterable[tuple[int, Task]], threads: int) -> Iterator[tuple[int, Task]]:
    """Tasks of `threads` files in turn, so that threads seldom want the same file."""
    by_file: dict[int, list[tuple[int, Task]]] = {}
    for number, task in tasks:
        by_file.setdefault(_file_of(task), []).append((number, task))
    files = list(by_file.values())
    for first in range(0, len(files), threads):
        for together in zip_longest(*files[first : first + threads]):
            yield from (task for task in together if task is not None)


def _file_of(task: Task) -> int:
    """The destination file of a task; -1 for matrices made apart, which go first."""
    if isinstance(task, Move):
        return task.target_file
    return task.file if isinstance(task, Gather) else -1


def execute(program: Program, root: Path, progress: Progress | None = None, share: Share | None = None) -> Timing:
    """Write the program's image, or a share of it, under `root`; raises what a thread raised, after all have stopped."""
    started, cpu = time.perf_counter(), time.process_time()
    if share is None:
        share = Share(list(enumerate(program.tasks())), lambda number, task: None)
    make_files(program, root)
    _perform(program, root, share, progress)
    if share.first:
        for name, data in program.image.small_files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return Timing(time.perf_counter() - started, time.process_time() - cpu)


def make_files(program: Program, root: Path) -> None:
    """Files of their full size, as holes; those that are there with that size are left as they are."""
    for name, size in program.image.files:
        path = root / name
        if path.is_file() and path.stat().st_size == size:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            stream.truncate(size)


def threads_of(program: Program, most: int = 0) -> int:
    """How many threads execute a program; `most` 0 leaves their number to the machine."""
    if any(ranges_of(path) for path in program.sources):
        return REMOTE_THREADS
    threads = most or THREADS
    return threads if program.casts else max(1, min(threads, len(program.image.files)))


def _perform(program: Program, root: Path, share: Share, progress: Progress | None) -> None:
    threads = threads_of(program, share.threads)
    tasks, lock, stop = _spread(share.tasks, threads), threading.Lock(), threading.Event()
    writing = [threading.Lock() for _ in program.image.files]

    def work() -> None:
        worker = _Worker(program, root, writing)
        try:
            while not stop.is_set():
                with lock:
                    number, task = next(tasks, (-1, None))
                if task is None:
                    return
                done = worker.run(task)
                share.finished(number, task)
                if progress is not None:
                    progress(done)
        except BaseException:
            stop.set()
            raise
        finally:
            worker.close()

    with one_thread_each() if program.casts else nullcontext(), ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
