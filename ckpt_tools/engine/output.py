"""The destination directory: checked first, written beside itself as `.partial`, renamed when everything is in."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..errors import CkptError, Finding, OutputExists, UsageProblem, error
from ..refs.client import Unreachable
from .journal import Journal
from .ranks import Elsewhere

SLACK = 16 << 20  # directory blocks and small files


Recognised = Callable[[Path], bool]


class WriteFailed(CkptError):
    """The system fails while an output is written."""


def partial_of(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def check_target(source: Path, target: Path, overwrite: bool, recognised: Recognised) -> None:
    """Raise unless `target` may be written: not inside the source, and absent, empty or overwritable."""
    a, b = source.resolve(), target.resolve()
    if a == b or a in b.parents or b in a.parents:
        raise error(
            UsageProblem,
            "output-in-source",
            "source and destination contain each other",
            where=str(target),
            expected="separate directories",
            actual=f"{a} and {b}",
            fix="choose another destination",
        )
    check_place(target, overwrite, recognised)


def check_place(target: Path, overwrite: bool, recognised: Recognised) -> bool:
    """Whether `target` holds something that is to be replaced; raises OutputExists where it may not be.

    Only a directory that `recognised` calls a checkpoint is ever replaced.
    """
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    replaceable = target.is_dir() and recognised(target)
    if not (overwrite and replaceable):
        fix = "choose another destination, or --overwrite" if replaceable else "choose another destination"
        raise error(
            OutputExists,
            "output-exists",
            "the destination is already there",
            where=str(target),
            expected="no such directory, or an empty one",
            actual="a checkpoint" if replaceable else "something that is not a checkpoint and is never overwritten",
            fix=fix,
        )
    return True


def check_space(target: Path, nbytes: int) -> None:
    """Raise unless the file system of `target` has room for `nbytes`."""
    needed, free, parent = space_for(target, nbytes)
    if free < needed:
        raise error(
            CkptError,
            "disk-full",
            "not enough free disk for the output",
            where=str(parent),
            expected=f"{needed:,} bytes",
            actual=f"{free:,} bytes free",
            fix="free some space, or choose another disk",
        )


def space_for(target: Path, nbytes: int) -> tuple[int, int, Path]:
    """(bytes needed, bytes free, where) to write `nbytes` at `target`."""
    parent = next(path for path in target.resolve().parents if path.exists())
    return nbytes + SLACK, shutil.disk_usage(parent).free, parent


def to_write(target: Path, nbytes: int) -> int:
    """What is left of `nbytes` where an interrupted run has written a part."""
    return nbytes - _allocated(partial_of(target.resolve()))


@contextmanager
def output_directory(
    target: Path,
    nbytes: int,
    journal: Journal | None = None,
    overwrite: bool = False,
    recognised: Recognised = lambda path: False,
) -> Iterator[Path]:
    """A `.partial` directory to write into; it becomes `target` if the block succeeds and vanishes if it fails.

    What is at `target` by then is judged as `check_target` does: it may have come there in the meantime. With a `journal`
    `.partial` stays where that fails, where the block was interrupted, or the system (OSError) or the network failed, and the
    next run of the same program finds it as it is. Links are followed: what `target` points to is replaced, beside itself.
    """
    target = target.resolve()
    partial = partial_of(target)
    check_space(target, to_write(target, nbytes))
    lock = _claim(partial)
    try:
        if journal is None or not journal.continues():
            _empty(partial)
            if journal is not None:
                journal.begin()
        with _cleaning(partial, nbytes, journal):
            yield partial
            _rename(partial, target, check_place(target, overwrite, recognised))
        if journal is not None:  # only now: a run that is killed between the two has lost nothing
            shutil.rmtree(target / journal.folder.name, ignore_errors=True)
    finally:
        os.close(lock)


@contextmanager
def _cleaning(partial: Path, nbytes: int, journal: Journal | None) -> Iterator[None]:
    """Remove a directory whose writing failed, unless another run can go on with what is there."""
    try:
        yield
    except OSError as problem:
        lasting = journal is not None and journal.begun
        if not lasting:
            shutil.rmtree(partial, ignore_errors=True)
        raise write_failed(problem, partial, nbytes, lasting) from problem
    except Elsewhere as problem:
        if not problem.failure.lasting:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    except Unreachable as problem:
        if journal is None or not journal.begun:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        fix = f"check the network and run it again: it continues with {partial}"
        raise Unreachable(*(replace(finding, fix=fix) for finding in problem.findings)) from problem
    except OutputExists:
        if journal is None or not journal.begun:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    except (KeyboardInterrupt, SystemExit) as problem:
        if journal is not None and journal.begun:
            problem.add_note(f"run it again: it continues with {partial}")
        else:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_failed(problem: OSError, partial: Path, nbytes: int, lasting: bool) -> WriteFailed:
    """What the user is told of a system that fails while writing; `lasting`: what is written is kept."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    again = f"run it again: it continues with {partial}" if lasting else "run it again"
    return WriteFailed(
        Finding(
            "disk-full" if full else "write-failed",
            f"writing failed; the incomplete output was {'kept' if lasting else 'removed'}",
            where=str(problem.filename or partial),
            expected=f"room for {nbytes:,} bytes" if full else "files that can be read and written",
            actual=str(problem),
            fix=f"free some space and {again}" if full else f"see what the system says, and {again}",
        )
    )


def _allocated(folder: Path) -> int:
    """Bytes of disk that the files of a directory take: holes take none."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) if folder.is_dir() else 0


def _claim(partial: Path) -> int:
    """Make and lock the partial directory; returns the handle that holds the lock.

    The lock is the kernel's and dies with its process. Raises OutputExists while another run holds it.
    """
    partial.mkdir(parents=True, exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        os.close(handle)
        raise error(
            OutputExists,
            "output-busy",
            "another run is writing to this destination",
            where=str(partial),
            expected="one run for one destination",
            actual="the directory is locked",
            fix="wait for the other run, or choose another destination",
        ) from problem
    return handle


def _empty(folder: Path) -> None:
    for child in folder.iterdir():
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def _rename(partial: Path, target: Path, replaced: bool) -> None:
    """Without `replaced` the system itself refuses a target that is not empty."""
    if replaced:
        old = target.with_name(f"{target.name}.replaced-{os.getpid()}")
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old)
    else:
        partial.rename(target)
