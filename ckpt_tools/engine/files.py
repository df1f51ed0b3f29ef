"""File handles of one thread, and the primitive copies between them."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from pathlib import Path

from ..errors import CkptError, error

KEPT = 128
PAGE = 4096
SPLICE = 64 << 10  # what the kernel moves at once inside copy_file_range: a pipe of 16 pages
STAGE = 1 << 20
FALLBACK = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class Handles:
    """Opens files on demand and keeps the latest; not shared between threads."""

    def __init__(self, paths: list[Path], flags: int) -> None:
        self.paths, self.flags = paths, flags
        self.open: OrderedDict[int, int] = OrderedDict()

    def __getitem__(self, number: int) -> int:
        if number in self.open:
            self.open.move_to_end(number)
            return self.open[number]
        if len(self.open) >= KEPT:
            os.close(self.open.popitem(last=False)[1])
        handle = self.open[number] = os.open(self.paths[number], self.flags)
        return handle

    def close(self) -> None:
        while self.open:
            os.close(self.open.popitem()[1])


def shortened(path: Path, position: int) -> CkptError:
    return error(
        CkptError,
        "source-changed",
        "the source ended before its header said",
        where=str(path),
        expected=f"bytes at {position:,}",
        actual="end of file",
        fix="do not change the source while it is read",
    )


def read_exactly(handles: Handles, number: int, view: memoryview, position: int) -> None:
    """Fill `view` from a file; raises CkptError if the file has become shorter."""
    while len(view):
        got = os.preadv(handles[number], [view], position)
        if got == 0:
            raise shortened(handles.paths[number], position)
        view, position = view[got:], position + got


def write_exactly(handle: int, view: memoryview, position: int) -> None:
    while len(view):
        put = os.pwrite(handle, view, position)
        view, position = view[put:], position + put


def copy_range(
    sources: Handles, number: int, position: int, target: int, offset: int, length: int, buffer: memoryview
) -> None:
    """Copy bytes by copy_file_range; where the kernel or file system cannot, by sendfile, else through `buffer`.

    The page cache takes 64 KiB that begin at a multiple of 64 KiB as one folio and anything else page by page, which costs
    half as much again (ext4, Linux 6.18). So a first short run brings the destination to such a multiple; bytes that change
    their place within a page would never get there by splicing, and go through `buffer`.
    """
    source, kernel = sources[number], (position - offset) % PAGE == 0
    while length:
        run, done = min(length, -offset % SPLICE or length), -1
        if kernel:
            done = _copy(source, target, run, position, offset)
            kernel = done >= 0
        if done < 0:
            view = buffer[: min(length, -offset % SPLICE or STAGE, len(buffer))]
            read_exactly(sources, number, view, position)
            write_exactly(target, view, offset)
            done = len(view)
        if done == 0:
            raise shortened(sources.paths[number], position)
        length, position, offset = length - done, position + done, offset + done


def _copy(source: int, target: int, length: int, position: int, offset: int) -> int:
    """copy_file_range or sendfile; -1 where neither can."""
    try:
        return os.copy_file_range(source, target, length, position, offset)
    except OSError as problem:
        if problem.errno not in FALLBACK:
            raise
    return _send(source, target, length, position, offset)


def _send(source: int, target: int, length: int, position: int, offset: int) -> int:
    """sendfile, or -1 where it cannot."""
    try:
        os.lseek(target, offset, os.SEEK_SET)
        return os.sendfile(target, source, position, length)
    except OSError as problem:
        if problem.errno not in FALLBACK:
            raise
        return -1
