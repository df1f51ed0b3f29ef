"""The entries of a registry: read all or one, put one in, take one out; wherever they lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, NamedTuple

from ..errors import CkptError, Finding, NotFound, OutputExists, UsageProblem, error
from ..refs import expanded, on_hub
from ..refs.commits import Changes
from ..report import Outcome
from .base import Place
from .hub import Repository
from .local import Folder
from .manifest import SUFFIX, Entry, read_entry

VARIABLE = "CKPT_TOOLS_REGISTRY"
ALLOWED = frozenset(ascii_letters + digits + "._-")
LONGEST = 128


def opened(ref: str | None, environment: Mapping[str, str]) -> Place:
    """The registry at a path or Hub ref; CKPT_TOOLS_REGISTRY, else the user's data directory (XDG base directories)."""
    named = ref or environment.get(VARIABLE)
    if named and on_hub(named):
        return Repository(named)
    if named:
        return Folder(expanded(named).absolute())
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Folder(expanded(data).absolute() / "ckpt-tools" / "registry", absent_is_empty=True)


def file_of(name: str) -> str:
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
    return f"{name}{SUFFIX}"


def read_all(place: Place) -> Outcome[list[Entry]]:
    """Every entry by name; a file that is none is a finding and hides no other."""
    entries: list[Entry] = []
    findings: list[Finding] = []
    for path in sorted(place.read().glob(f"*{SUFFIX}")):
        try:
            entries.append(read_entry(path))
        except CkptError as problem:
            findings += problem.findings
    return Outcome(entries, findings)


def get(place: Place, name: str) -> Entry:
    """Raises NotFound if there is no such entry or registry."""
    return _find(place, place.read(), name)


def put(place: Place, entry: Entry, overwrite: bool = False, elsewhere: bool = True) -> None:
    """Write an entry; raises OutputExists if its name is taken. With `overwrite` an entry of that name is replaced, without
    `elsewhere` only if its head lies where this one does."""

    def decide(folder: Path) -> Changes:
        _check_name(place, folder, Name(entry.name, entry.location, overwrite, elsewhere))
        return {file_of(entry.name): _text(entry)}

    place.change(decide, f"Register {entry.name}")


class Name(NamedTuple):
    """A name that a head at `location` is to have; the rest as for `put`."""

    name: str
    location: str
    overwrite: bool = False
    elsewhere: bool = True


def check_name(place: Place, wanted: Name) -> None:
    """Raises what `put` would raise now."""
    file_of(wanted.name)
    _check_name(place, place.read(may_be_new=True), wanted)


def _check_name(place: Place, folder: Path, wanted: Name) -> None:
    path = folder / file_of(wanted.name)
    if not path.exists():
        return
    same = wanted.elsewhere or read_entry(path).location == wanted.location
    if wanted.overwrite and same:
        return
    raise error(
        OutputExists,
        "name-taken",
        f"a head called {wanted.name!r} is there already",
        where=f"{place.where}/{path.name}",
        expected="a new name" if same else f"a new name, or the head at {wanted.location}",
        actual=wanted.name,
        fix=f"choose another name, or {'--overwrite' if same else f'`ckpt-tools registry remove {wanted.name}` first'}",
    )


def amend(place: Place, name: str, **fields: Any) -> None:
    """Set fields of an entry as it is by then; raises NotFound if there is none."""

    def decide(folder: Path) -> Changes:
        return {file_of(name): _text(_find(place, folder, name).model_copy(update=fields))}

    place.change(decide, f"Amend {name}")


def remove(place: Place, name: str) -> Entry:
    """Take an entry out; the head itself stays where it is."""
    taken: list[Entry] = []

    def decide(folder: Path) -> Changes:
        taken[:] = [_find(place, folder, name)]
        return {file_of(name): None}

    place.change(decide, f"Remove {name}")
    return taken[0]


def _text(entry: Entry) -> str:
    return entry.model_dump_json(indent=2) + "\n"


def _find(place: Place, folder: Path, name: str) -> Entry:
    path = folder / file_of(name)
    if path.is_file():
        return read_entry(path)
    raise error(
        NotFound,
        "head-not-registered",
        f"no head is called {name!r}",
        where=place.where,
        expected=", ".join(sorted(found.name.removesuffix(SUFFIX) for found in folder.glob(f"*{SUFFIX}")))
        or "any head",
        actual=name,
        fix="see `ckpt-tools registry list`",
    )
