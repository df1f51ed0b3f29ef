"""`draft_manifest.json`: what a written head is, for which target, from what, and the hash of every file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .. import __version__
from ..errors import NotFound, error
from ..stores.checksums import sha256_of
from .recorded import FORMAT_VERSION
from .recorded import MANIFEST as MANIFEST


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TargetRef(_Strict):
    """`ref` is a name that others can resolve, "" if there is none: paths of a machine are not recorded.

    `identity` are the hashes that tell targets apart, where they were computed.
    """

    ref: str = ""
    architecture: str = ""
    model_type: str = ""
    identity: dict[str, Any] = Field(default_factory=dict)


class Tuning(_Strict):
    """How tune-draft trained a head on its target: optimiser steps, generated tokens (0: samples were given), draft steps
    of the chain, and accept lengths (tokens per verification) on prompts held out, where any were."""

    rounds: int
    updates: int
    processes: int
    tokens: int
    steps: int
    learning_rate: float
    temperature: float
    seed: int
    accept_length_before: float | None = None
    accept_length_after: float | None = None


class Provenance(_Strict):
    """`source` is the last part of the source's path or its name; `trained` says that the weights came out of a training
    checkpoint or were tuned here. `tensors` counts what was taken from the source, `made` lists what was computed or added;
    `tuning` is how the floating tensors were trained since they were read."""

    source: str
    source_format: str
    trained: bool
    tensors: int
    made: list[str] = Field(default_factory=list)
    tuning: Tuning | None = None


class FileHash(_Strict):
    """Size and SHA-256 of one file."""

    nbytes: int
    sha256: str


class Manifest(_Strict):
    """The whole file. `format` is "sglang", "speculators" or "merged"; `kind` "mtp", "eagle" or "eagle3"."""

    version: int = FORMAT_VERSION
    written_by: str
    format: str
    kind: str
    architecture: str
    target: TargetRef
    provenance: Provenance
    files: dict[str, FileHash]


def hash_file(path: Path) -> FileHash:
    return FileHash(nbytes=path.stat().st_size, sha256=sha256_of(path))


def hash_files(root: Path, known: Mapping[str, FileHash] | None = None) -> dict[str, FileHash]:
    """Every file below `root` but the manifest itself; `known` hashes are not computed again."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {name: (known or {}).get(name) or hash_file(root / name) for name in names}


def written_by() -> str:
    return f"ckpt-tools {__version__}"


def write_manifest(root: Path, manifest: Manifest) -> None:
    (root / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(root: Path) -> Manifest:
    """Raises NotFound if there is none or it is not readable."""
    path = root / MANIFEST
    try:
        found = Manifest.model_validate_json(path.read_bytes())
        if found.version != FORMAT_VERSION:
            raise ValueError(f"version {found.version}, and {FORMAT_VERSION} is read")
        return found
    except (OSError, ValueError) as problem:
        raise error(
            NotFound,
            "manifest-unreadable",
            f"no readable {MANIFEST}",
            where=str(path),
            expected="the manifest that export-draft, extract-draft and merge-draft write",
            actual=str(problem).splitlines()[0],
            fix="write the head again with this tool",
        ) from problem
