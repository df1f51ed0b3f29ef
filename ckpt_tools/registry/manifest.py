"""One entry of the registry, as it lies on disk."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..drafts.manifest import FileHash, Provenance, TargetRef
from ..errors import CkptError, error

ENTRY_VERSION = 1
SUFFIX = ".json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Verified(_Strict):
    """How the head was verified when it was added; a check repeats it in the same way. `warnings` are codes."""

    server: str
    allow_vocab_padding: bool = False
    allow_prefix_vocab: bool = False
    warnings: list[str] = Field(default_factory=list)


class Measured(_Strict):
    """What a smoke test or a server measured: tokens per verification with `steps` draft steps, the target's own included."""

    accept_length: float = Field(ge=1)
    steps: int | None = Field(default=None, ge=1)


class Entry(_Strict):
    """`location` and `target_location` are refs: absolute paths of this machine or Hub ids; `target` is what travels."""

    version: int = ENTRY_VERSION
    name: str
    added: str
    written_by: str
    location: str
    kind: str
    format: str
    architecture: str
    target_location: str
    target: TargetRef
    files: dict[str, FileHash]
    provenance: Provenance | None = None
    verified: Verified
    measured: Measured | None = None


def read_entry(path: Path) -> Entry:
    """Raises CkptError for a file that is no entry, or whose name is not the entry's."""
    try:
        entry = Entry.model_validate_json(path.read_bytes())
        problem = f"the entry of {entry.name!r}" if entry.name != path.name.removesuffix(SUFFIX) else ""
        problem = f"version {entry.version}" if entry.version != ENTRY_VERSION else problem
        if not problem:
            return entry
    except (OSError, ValueError) as failure:
        problem = str(failure).splitlines()[0]
    raise error(
        CkptError,
        "entry-unreadable",
        f"{path.name} is no entry of a registry",
        where=str(path),
        expected=f"an entry of version {ENTRY_VERSION} under its own name",
        actual=problem,
        fix="remove the file and add the head again",
    )
