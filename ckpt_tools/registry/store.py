"""The folder: entries are read without a lock and written under one, each at once or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import ascii_letters, digits

from ..errors import CkptError, Finding, NotFound, OutputExists, UsageProblem, error
from ..report import Outcome
from .manifest import SUFFIX, Entry, read_entry

VARIABLE = "CKPT_TOOLS_REGISTRY"
LOCK = ".lock"
PATIENCE = 60.0  # seconds; a writer holds the lock for milliseconds
ALLOWED = frozenset(ascii_letters + digits + "._-")
LONGEST = 128


def default_folder(environment: Mapping[str, str]) -> Path:
    """CKPT_TOOLS_REGISTRY, else the user's data directory (XDG base directory specification)."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser()
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "ckpt-tools" / "registry"


def path_of(folder: Path, name: str) -> Path:
    """Raises UsageProblem for a name that is no plain file name."""
    if not name or len(name) > LONGEST or name[0] in ".-" or not set(name) <= ALLOWED:
        raise error(
            UsageProblem,
            "name-invalid",
            "this cannot be the name of a head",
            expected=f"letters, digits, '.', '_' and '-', at most {LONGEST}, not beginning with '.' or '-'",
            actual=repr(name),
            fix="choose another name",
        )
    return folder / f"{name}{SUFFIX}"


def read_all(folder: Path) -> Outcome[list[Entry]]:
    """Every entry by name; a file that is none is a finding and hides no other."""
    entries: list[Entry] = []
    findings: list[Finding] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            entries.append(read_entry(path))
        except CkptError as problem:
            findings += problem.findings
    return Outcome(entries, findings)


def get(folder: Path, name: str) -> Entry:
    """Raises NotFound if there is no such entry."""
    path = path_of(folder, name)
    if path.is_file():
        return read_entry(path)
    raise error(
        NotFound,
        "head-not-registered",
        f"no head is called {name!r}",
        where=str(folder),
        expected=", ".join(sorted(found.name.removesuffix(SUFFIX) for found in folder.glob(f"*{SUFFIX}")))
        or "any head",
        actual=name,
        fix="see `ckpt-tools registry list`",
    )


def put(folder: Path, entry: Entry, overwrite: bool = False) -> None:
    """Write an entry; raises OutputExists if its name is taken."""
    path = path_of(folder, entry.name)
    with _locked(folder):
        if path.exists() and not overwrite:
            raise error(
                OutputExists,
                "name-taken",
                f"a head called {entry.name!r} is there already",
                where=str(path),
                expected="a new name",
                actual=entry.name,
                fix="choose another name, or --overwrite",
            )
        _write(path, entry.model_dump_json(indent=2) + "\n")


def remove(folder: Path, name: str) -> Entry:
    """Take an entry out; the head itself stays where it is."""
    with _locked(folder):
        entry = get(folder, name)
        path_of(folder, name).unlink()
    return entry


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
