"""What the original Hugging Face folder was like, for writing it again: names, dtypes, layout variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .stores.hf_folder import INDEX, open_folder, read_json
from .stores.sidecars import MANIFEST

BLOCK_SCALE = "_scale_inv"


@dataclass(frozen=True, slots=True)
class Reference:
    """`names` and `dtypes` are those of the tensors that were seen; `variants` were recorded by an earlier conversion.

    `quantised` are the weights that had block scales.
    """

    names: frozenset[str] = frozenset()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    quantised: frozenset[str] = frozenset()


CARRIED = "family"  # in the manifest of a carried copy, not in that of a Hugging Face folder


def reference_of(config_path: Path) -> Reference:
    """From the manifest of a carried copy, else from the headers and the index beside the config."""
    folder = config_path.parent
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if CARRIED in manifest:
        names = frozenset(manifest.get("stored_duplicates", ()))
        quantised = frozenset(manifest.get("quantised", ()))
        return Reference(names, dict(manifest.get("dtypes", {})), dict(manifest.get("variants", {})), quantised)
    indexed = read_json(folder / INDEX).get("weight_map", {}) if (folder / INDEX).is_file() else {}
    tensors = open_folder(folder).tensors
    names = frozenset((*indexed, *tensors))
    quantised = frozenset(name for name in names if name + BLOCK_SCALE in names)
    return Reference(names, {name: tensor.dtype for name, tensor in tensors.items()}, {}, quantised)
