"""How a folder is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """`target` and `base_model` default to what the head's manifest records; `license` is a Hub licence id. `replace_weights`
    removes weights that are on the Hub and not in the folder."""

    target: str = ""
    base_model: str = ""
    relation: str = ""
    license: str = ""
    smoke: Path | None = None
    private: bool = False
    create_pr: bool = False
    revision: str = ""
    message: str = ""
    replace_weights: bool = False
    dry_run: bool = False
