"""Which tasks of a program are done, kept inside `DST.partial` while it is written, so that the next run continues.

`plan.json` says of which program and of which sources. A file `marks-<boot>-<rank>` per boot of a machine and per rank holds
one byte per task: WRITTEN once the kernel has its bytes, DURABLE once the disk has them. A killed process loses nothing that
the kernel has, a machine that goes down does: marks of an earlier boot count only where they are DURABLE. Nothing waits for
the disk: a thread flushes every SETTLE_S seconds, so short conversions never do. Where the system fails, everything is flushed
at once, and what cannot be is unmarked: a network file system accepts bytes and says only later, at close or fsync, that it had
no room for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import CkptError, OutputExists, error
from ..report import listed
from ..stores.sidecars import JOURNAL as FOLDER
from .background import beside
from .program import Program, Task, files_of

PLAN = "plan.json"
MARKS = "marks-"
WRITTEN, DURABLE = 1, 2
SETTLE_S = 30.0
HEAD = 64 << 10  # bytes of a source that are hashed where no safetensors header says how many
NUMBERS = itemgetter(0, 1, 2, 3, 4, 5, 6, 7, 9)  # of a Move: all but its cast
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Stamp(NamedTuple):
    """What tells one program from another: the hash of all its tasks, their number, and the state of its sources."""

    plan: str
    tasks: int
    sources: dict[str, list[Any]]


def stamp_of(program: Program, tasks: Iterable[Task]) -> Stamp:
    """The stamp of a program cut into these tasks. Raises OSError where a source cannot be read.

    Sources are known by size, modification time and hash of their head.
    """
    sizes = array("q", (task.nbytes for task in tasks))
    digest = hashlib.sha256(repr((__version__, program.image.files, program.apart)).encode())
    digest.update(array("q", chain.from_iterable(map(NUMBERS, program.moves))))
    digest.update(repr([move.cast for move in program.moves if move.cast is not None]).encode())
    literals = program.image.literals
    digest.update(array("q", chain.from_iterable((file, offset, zeros) for file, offset, _, zeros in literals)))
    digest.update(b"".join(literal.data for literal in literals))
    digest.update(sizes)
    return Stamp(digest.hexdigest(), len(sizes), {str(path): _state(path) for path in program.sources})


def _state(path: Path) -> list[Any]:
    """[size, modification time in ns, hash of the header or of the first HEAD bytes]."""
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        size = HEAD
        if path.suffix == ".safetensors":
            size = min(status.st_size, 8 + int.from_bytes(stream.read(8), "little"))
            stream.seek(0)
        return [status.st_size, status.st_mtime_ns, hashlib.sha256(stream.read(size)).hexdigest()]


def boot() -> str:
    """The identity of this machine since it was last started."""
    return BOOT_ID.read_text().strip()


class Journal:
    """The journal of one program in one `.partial` directory; `files` are the program's own, with their sizes.

    `done` has a 1 for every task that needs no more work; `begun` says that there is any.
    """

    def __init__(self, partial: Path, stamp: Stamp, files: list[tuple[Path, int]], overwrite: bool = False) -> None:
        self.partial, self.stamp, self.files, self.overwrite = partial, stamp, files, overwrite
        self.folder = partial / FOLDER
        self.done = bytearray(stamp.tasks)
        self.begun = False
        self._handle = -1
        self._fresh: list[tuple[int, Task]] = []
        self._problem: OSError | None = None

    def continues(self) -> bool:
        """Whether `partial` holds a beginning of this very program.

        False where there is none, or none that can be trusted. Raises OutputExists where it is another program's, or where
        a source has changed since, unless the user wants it overwritten.
        """
        found = _read_plan(self.folder / PLAN)
        if found is None:
            return False
        if reason := _differs(found, self.stamp):
            if self.overwrite:
                return False
            raise _refused(self.partial, *reason)
        return all(path.is_file() and path.stat().st_size == size for path, size in self.files)

    def is_here(self) -> bool:
        """Whether this machine sees the plan of this very program; its copies of the sources may have times of their own."""
        found = _read_plan(self.folder / PLAN)
        return found is not None and found.plan == self.stamp.plan

    def begin(self) -> None:
        """Write down which program this is; its files are made next."""
        self.folder.mkdir(parents=True)
        fresh = self.folder / f"{PLAN}.new"
        fresh.write_text(json.dumps(self.stamp._asdict()))
        fresh.replace(self.folder / PLAN)

    def open(self, rank: int = 0, boots: Iterable[str] = ()) -> None:
        """Read which tasks are done, and open the marks of this rank. `boots` are those of all machines at work."""
        trusted = {boot(), *boots}
        for path in self.folder.glob(f"{MARKS}*"):
            least = WRITTEN if path.name[len(MARKS) :].rpartition("-")[0] in trusted else DURABLE
            for number, mark in enumerate(path.read_bytes()[: self.stamp.tasks]):
                if mark >= least:
                    self.done[number] = 1
        self.begun = any(self.done)
        self._handle = os.open(self.folder / f"{MARKS}{boot()}-{rank}", os.O_RDWR | os.O_CREAT, 0o666)

    def mark(self, number: int, task: Task) -> None:
        """A task's bytes are written; called by any thread. Raises what flushing has met meanwhile."""
        if self._problem:
            raise self._problem
        os.pwrite(self._handle, bytes([WRITTEN]), number)
        self.begun = True
        self._fresh.append((number, task))

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Now and then, and where the block raises OSError, flush what is written; at its end the marks are closed."""
        try:
            with beside(self._settle):
                yield
        except OSError:
            with suppress(OSError):
                self.settle()
            raise
        finally:
            os.close(self._handle)

    def _settle(self, stop: threading.Event) -> None:
        try:
            while not stop.wait(SETTLE_S):
                self.settle()
        except OSError as problem:
            self._problem = problem

    def check_sources(self) -> None:
        """Raise CkptError if a source has changed since the program was stamped: what was read from it is not one state."""
        changed = [path for path, state in self.stamp.sources.items() if _state(Path(path)) != state]
        if changed:
            raise error(
                CkptError,
                "source-changed",
                "the source was changed while it was read",
                where=changed[0],
                expected=_told(self.stamp.sources[changed[0]]),
                actual=f"{_told(_state(Path(changed[0])))}; {listed(changed)}",
                fix="do not change the source while it is read, and run it again",
            )

    def settle(self) -> None:
        """Flush the files of the tasks marked since the last time, then mark these tasks as durable, and flush that.

        Raises OSError where a file cannot be flushed; then none of these tasks is marked any more.
        """
        fresh, self._fresh = self._fresh, []
        touched = {self.files[number][0] for _, task in fresh for number in files_of(task)}
        parents = {parent for path in touched for parent in path.parents if parent.is_relative_to(self.partial)}
        mark = 0
        try:
            for path in (*touched, *parents, self.folder / PLAN, self.folder):
                _flush(path)
            mark = DURABLE
        finally:
            for number, _ in fresh:
                os.pwrite(self._handle, bytes([mark]), number)
        os.fsync(self._handle)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_plan(path: Path) -> Stamp | None:
    """None where there is no plan, or one that was cut off when a machine went down."""
    try:
        found = json.loads(path.read_text())
        return Stamp(str(found["plan"]), int(found["tasks"]), dict(found["sources"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _differs(found: Stamp, wanted: Stamp) -> tuple[str, str, str, str] | None:
    """(code, what, expected, actual), or None where both are the same. A changed source usually changes the plan as well."""
    if found.sources.keys() == wanted.sources.keys():
        changed = [path for path, state in wanted.sources.items() if found.sources[path] != state]
        if changed:
            was, is_ = found.sources[changed[0]], wanted.sources[changed[0]]
            what = f"{len(changed)} of the source's files have changed since this output was begun"
            return "resume-source-changed", what, f"{changed[0]}: {_told(was)}", f"{_told(is_)}; {listed(changed)}"
    if found != wanted:
        what = "the destination was begun with another plan"
        return "resume-other-plan", what, _told_plan(wanted), _told_plan(found)
    return None


def _told(state: list[Any]) -> str:
    size, mtime, header = state
    return f"{size:,} bytes, modified at {mtime / 1e9:.3f} s, header {header[:12]}"


def _told_plan(stamp: Stamp) -> str:
    folders = sorted({str(Path(path).parent) for path in stamp.sources})
    return f"plan {stamp.plan[:12]} of {stamp.tasks} tasks from {listed(folders) or 'nothing'}"


def _refused(partial: Path, code: str, what: str, expected: str, actual: str) -> CkptError:
    return error(
        OutputExists,
        code,
        what,
        where=str(partial),
        expected=expected,
        actual=actual,
        fix=f"--overwrite starts again, and so does removing {partial}",
    )
