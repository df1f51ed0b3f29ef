"""SHA-256 of every file of a checkpoint, kept in its manifest: written on request, compared by `inspect --check`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..report import Report
from .base import is_file
from .hf_folder import read_json

CHECKSUMS = "checksums"
NOTHING: Mapping[str, str] = {}


def checksums(root: Path, names: list[str]) -> dict[str, str]:
    """The SHA-256 of files below `root` by their names; raises OSError. Reads every byte, several files at a time."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(root / name), names), strict=True))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal; raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(root: Path, manifest: Path, but: str) -> list[str]:
    """Names of all files below `root` except the manifest itself and a folder `but`."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and path != manifest)
    return [str(path.relative_to(root)) for path in paths if but not in path.relative_to(root).parts]


def recorded(manifest: Path) -> Mapping[str, Any]:
    """The checksums that a manifest holds; empty where there is none."""
    found = read_json(manifest).get(CHECKSUMS) if manifest.is_file() else None
    return found if isinstance(found, dict) else {}


def _is_below(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def check(root: Path, manifest: Path, report: Report, known: Mapping[str, str] = NOTHING) -> int:
    """Compare every recorded file with its checksum; returns how many there are. Names that lead out of `root` are findings.

    `known` are checksums of files that are not here. Links are followed: a cache holds its files that way.
    """
    wanted = recorded(manifest)
    inside = {name for name in wanted if _is_below(name) and is_file(root / name)} - known.keys()
    found = {**known, **checksums(root, sorted(inside))}
    for name, digest in wanted.items():
        if found.get(name) == digest:
            continue
        report.error(
            "checksum-differs" if name in found else "checksum-file-missing",
            f"{name} is {'not the file that was written' if name in found else 'not there'}",
            where=str(root / name),
            expected=f"SHA-256 {digest}",
            actual=found.get(name, "no such file"),
            fix="copy it again from where it was written, or convert again",
        )
    return len(wanted)
