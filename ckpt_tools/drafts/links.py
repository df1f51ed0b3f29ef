"""Taking a file over unchanged: its blocks shared where the file system can, else a hard link, else a copy."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

FICLONE = 0x40049409  # ioctl: share the blocks of another file, copied when either is written (btrfs, xfs)
CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EMLINK}


def take_over(source: Path, target: Path) -> None:
    """`target` becomes what `source` is; links are followed. The source itself is never written."""
    source = source.resolve()
    try:
        with source.open("rb") as here, target.open("xb") as there:
            fcntl.ioctl(there.fileno(), FICLONE, here.fileno())
        return
    except OSError as problem:
        target.unlink(missing_ok=True)
        if problem.errno not in CANNOT:
            raise
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in CANNOT:
            raise
        shutil.copyfile(source, target)
