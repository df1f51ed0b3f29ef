"""Which format a head is in: from the config and the names, never from the folder's name."""

from __future__ import annotations

from pathlib import Path

from ...errors import CkptError, error
from ..spec import DraftSpec


def read_draft(path: Path, hf_config: Path | None = None) -> DraftSpec:
    """See `spec.open_draft`."""
    raise not_a_head(path, "nothing is read yet")


def not_a_head(path: Path, actual: str) -> CkptError:
    return error(
        CkptError,
        "not-a-draft-head",
        "this is no draft head",
        where=str(path),
        expected="MTP layers, or the fc.weight and decoder layer of an EAGLE head",
        actual=actual,
        fix="name the folder of the head, not that of the target",
    )
