"""A registry in a folder, local or on a shared file system: written under a lock, each entry at once or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import CkptError, NotFound, error
from .base import Decide

LOCK = ".lock"
PATIENCE = 60.0  # seconds; a writer holds the lock for milliseconds


@dataclass(frozen=True, slots=True)
class Folder:
    """Entries are read without the lock. Only one of `absent_is_empty` may be absent."""

    path: Path
    absent_is_empty: bool = False

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self, may_be_new: bool = False) -> Path:
        """Raises NotFound for what is no folder that can be read."""
        try:
            with os.scandir(self.path):
                return self.path
        except OSError as problem:
            if (self.absent_is_empty or may_be_new) and isinstance(problem, FileNotFoundError):
                return self.path
            raise error(
                NotFound,
                "registry-not-found",
                "no registry can be read here",
                where=self.where,
                expected="a folder of entries",
                actual=problem.strerror or str(problem),
                fix="check the path; `registry add` makes a new registry",
            ) from problem

    def change(self, decide: Decide, message: str) -> None:
        with _locked(self.path):
            for name, text in decide(self.path).items():
                if text is None:
                    (self.path / name).unlink()
                else:
                    _write(self.path / name, text)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=PATIENCE):
            yield
    except Timeout as problem:
        raise error(
            CkptError,
            "registry-locked",
            "another process keeps the registry locked",
            where=str(folder / LOCK),
            expected=f"the lock within {PATIENCE:g} s",
            actual="still locked",
            fix="wait for the other process, or end it",
        ) from problem


def _write(path: Path, text: str) -> None:
    """A reader sees the old file or the new one; after a crash the disk holds one of them."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
