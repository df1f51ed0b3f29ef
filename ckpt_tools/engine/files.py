"""File handles of one thread, and the primitive copies between them."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from pathlib import Path

from ..errors import CkptError, error
from ..refs.ranges import RangedFile, ranges_of

KEPT = 128
PAGE = 4096
SPLICE = 64 << 10  # what the kernel moves at once inside copy_file_range: a pipe of 16 pages
STAGE = 1 << 20
KEPT_TENSORS = 16  # small remote tensors that a thread keeps
WHOLE = 1 << 20  # bytes up to which a remote tensor is fetched whole: scales, norms and biases are read piece by piece
FALLBACK = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class Handles:
    """Opens files on demand and keeps the latest; not shared between threads."""

    def __init__(self, paths: list[Path], flags: int) -> None:
        self.paths, self.flags = paths, flags
        self.open: OrderedDict[int, int] = OrderedDict()
        self.fetched: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def __getitem__(self, number: int) -> int:
        if number in self.open:
            self.open.move_to_end(number)
            return self.open[number]
        if len(self.open) >= KEPT:
            os.close(self.open.popitem(last=False)[1])
        handle = self.open[number] = os.open(self.paths[number], self.flags)
        return handle

    def remote(self, number: int) -> RangedFile | None:
        """How to read a file that is on the Hub; None for one that is here."""
        return ranges_of(self.paths[number])

    def fetch(self, number: int, source: RangedFile, view: memoryview, position: int) -> None:
        """Fill `view` from a file on the Hub."""
        start, stop = source.tensor_at(position)
        if stop - start > WHOLE or position + len(view) > stop:
            source.read_into(view, position)
            return
        data = self.fetched.get((number, start))
        if data is None:
            data = self.fetched[number, start] = b"".join(source.chunks(start, stop - start))
            if len(self.fetched) > KEPT_TENSORS:
                self.fetched.popitem(last=False)
        view[:] = data[position - start : position - start + len(view)]

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
    """Fill `view` from a file, here or on the Hub; raises CkptError if the file has become shorter."""
    if len(view) and (source := handles.remote(number)) is not None:
        handles.fetch(number, source, view, position)
        return
    while len(view):
        got = os.preadv(handles[number], [view], position)
        if got == 0:
            raise shortened(handles.paths[number], position)
        view, position = view[got:], position + got


def write_exactly(handle: int, view: memoryview, position: int) -> None:
    while len(view):
        put = os.pwrite(handle, view, position)
        if put == 0:
            raise OSError(errno.EIO, "nothing was written")
        view, position = view[put:], position + put


def copy_range(
    sources: Handles, number: int, position: int, target: int, offset: int, length: int, buffer: memoryview
) -> None:
    """Copy bytes by copy_file_range; where the kernel or file system cannot, by sendfile, else through `buffer`.

    Some file systems answer 0 where there is more to copy (procfs and FUSE ones; cp reads on as well), so that only a read that
    comes back empty is the end of the source: CkptError.

    The page cache takes 64 KiB that begin at a multiple of 64 KiB as one folio and anything else page by page, which costs
    half as much again (ext4, Linux 6.18). So a first short run brings the destination to such a multiple; bytes that change
    their place within a page would never get there by splicing, and go through `buffer`.
    """
    source, kernel = sources[number], (position - offset) % PAGE == 0
    while length:
        run, done = min(length, -offset % SPLICE or length), 0
        if kernel:
            done = _copy(source, target, run, position, offset)
            kernel = done > 0
        if not kernel:
            view = buffer[: min(length, -offset % SPLICE or STAGE, len(buffer))]
            read_exactly(sources, number, view, position)
            write_exactly(target, view, offset)
            done = len(view)
        length, position, offset = length - done, position + done, offset + done


def _copy(source: int, target: int, length: int, position: int, offset: int) -> int:
    """copy_file_range or sendfile; 0 where neither can."""
    try:
        return os.copy_file_range(source, target, length, position, offset)
    except OSError as problem:
        if problem.errno not in FALLBACK:
            raise
    return _send(source, target, length, position, offset)


def _send(source: int, target: int, length: int, position: int, offset: int) -> int:
    """sendfile, or 0 where it cannot."""
    try:
        os.lseek(target, offset, os.SEEK_SET)
        return os.sendfile(target, source, position, length)
    except OSError as problem:
        if problem.errno not in FALLBACK:
            raise
        return 0
