"""What the original Hugging Face folder was like, for writing it again: names, dtypes, layout variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import NotFound, error
from .families.base import unknown_shape
from .mapping.arrangement import Shape
from .stores.base import Tensor
from .stores.dtypes import BY_NAME
from .stores.hf_folder import INDEX, open_folder, read_json
from .stores.sidecars import MANIFEST

BLOCK_SCALE = "_scale_inv"


@dataclass(frozen=True, slots=True)
class Reference:
    """`names`, `dtypes` and `shape_of` are of the tensors that were seen; `variants` were recorded by an earlier conversion.

    `quantised` are the weights that had block scales.
    """

    names: frozenset[str] = frozenset()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    quantised: frozenset[str] = frozenset()
    shape_of: Callable[[str], Shape | None] = unknown_shape


def shape_in(tensors: Mapping[str, Tensor]) -> Callable[[str], Shape | None]:
    """The shape of a stored tensor by its name, or None."""
    return lambda name: tensors[name].shape if name in tensors else None


CARRIED = "family"  # in the manifest of a carried copy, not in that of a Hugging Face folder


def reference_of(config_path: Path) -> Reference:
    """From the manifest of a carried copy, else from the headers and the index beside the config."""
    folder = config_path.parent
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if CARRIED in manifest:
        return _carried(manifest, folder / MANIFEST)
    indexed = read_json(folder / INDEX).get("weight_map", {}) if (folder / INDEX).is_file() else {}
    tensors = open_folder(folder).tensors
    names = frozenset((*indexed, *tensors))
    quantised = frozenset(name for name in names if name + BLOCK_SCALE in names)
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return Reference(names, dtypes, {}, quantised, shape_in(tensors))


def _carried(manifest: Mapping[str, Any], path: Path) -> Reference:
    """Raises NotFound where the manifest is not what we write."""
    names, quantised = (manifest.get(key, []) for key in ("stored_duplicates", "quantised"))
    dtypes, variants = (manifest.get(key, {}) for key in ("dtypes", "variants"))
    lists = all(
        isinstance(value, list) and all(isinstance(each, str) for each in value) for value in (names, quantised)
    )
    maps = all(
        isinstance(value, dict) and all(isinstance(v, str) for v in value.values()) for value in (dtypes, variants)
    )
    if not lists or not maps or not set(dtypes.values()) <= BY_NAME.keys():
        raise error(
            NotFound,
            "manifest-invalid",
            f"{path.name} is not as it was written",
            where=str(path),
            expected="stored_duplicates and quantised: lists of names; dtypes and variants: names to words",
            actual=str({key: manifest.get(key) for key in ("stored_duplicates", "quantised", "dtypes", "variants")})[
                :200
            ],
            fix="restore the file, or name the original model with --hf-config",
        )
    return Reference(frozenset(names), dtypes, variants, frozenset(quantised))
