"""The target that a head is written for: what its config says, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...families import FAMILIES
from ...families.base import Family
from ...families.config import MTP_FIELDS, Fields
from ...families.dims import Dims
from ...families.edits import mtp_edits
from ...stores.hf_folder import CONFIG, read_json
from ..spec import DraftSpec, first_architecture


@dataclass(frozen=True, slots=True)
class Target:
    """`name` is what users call it (a Hub id), "" if only a path is known. `family` and `dims` are None for a model that no
    table knows; the few fields below are read for any."""

    root: Path
    name: str
    config: Mapping[str, Any]
    config_path: Path
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    family: Family | None
    dims: Dims | None

    @property
    def architecture(self) -> str:
        return first_architecture(self.config)

    @property
    def default_aux(self) -> tuple[int, int, int]:
        """The boundaries that SGLang takes where a head names none."""
        return (2, self.num_layers // 2, self.num_layers - 3)


def read_target(path: Path, name: str = "") -> Target:
    """`path` is the target's folder or its config.json; raises NotFound and CkptError with every problem of the config."""
    config_path = path / CONFIG if path.is_dir() else path
    config = read_json(config_path)
    fields = Fields(config, str(config_path))
    family = next((f for f in FAMILIES if config.get("model_type") in f.model_types), None)
    dims = family.dims(fields) if family else None
    found = Target(
        root=config_path.parent,
        name=name,
        config=config,
        config_path=config_path,
        hidden_size=fields.size("hidden_size"),
        num_layers=fields.size("num_hidden_layers"),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        family=family,
        dims=dims,
    )
    fields.done()
    return found


def count_edits(spec: DraftSpec, target: Target) -> dict[tuple[str, ...], Any]:
    """Edits with which the target's config counts the head's layers; none where the family's keys alone tell."""
    assert spec.family is not None
    if spec.family.undeclared_mtp and not any(name in target.config for name in MTP_FIELDS):
        return {}
    return dict(mtp_edits(target.config, spec.mtp_layers, spec.family.mtp_field))
