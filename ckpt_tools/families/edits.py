"""Editing config.json field by field: never through a config class, which would drop what it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .config import MTP_FIELDS

DTYPE_FIELDS = ("torch_dtype", "dtype")
QUANTISATION_FIELDS = ("quantization_config", "compression_config")
REMOVED = object()


def edited_config(original: bytes, edits: Mapping[tuple[str, ...], Any]) -> bytes:
    """config.json with the values at `edits` (paths of keys) replaced or `REMOVED`, all else as it was.

    The bytes themselves come back if nothing changes.
    """
    config = json.loads(original)
    changed = False
    for path, value in edits.items():
        holder = config
        for key in path[:-1]:
            holder = holder[key]
        if value is REMOVED:
            changed |= holder.pop(path[-1], REMOVED) is not REMOVED
            continue
        changed |= path[-1] not in holder or holder[path[-1]] != value
        holder[path[-1]] = value
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode() if changed else original


def mtp_edits(config: Mapping[str, Any], count: int, family_field: str) -> dict[tuple[str, ...], int]:
    """Edits that make the config declare `count` MTP layers, in the fields it has or else in the family's field."""
    present = dict.fromkeys(_paths(config, MTP_FIELDS), count)
    if present or not count:
        return present
    nested = ("text_config",) if isinstance(config.get("text_config"), Mapping) else ()
    return {(*nested, family_field): count}


def quantisation_removals(config: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Edits that take the quantisation out: the weights are no longer quantised."""
    return dict.fromkeys(_paths(config, QUANTISATION_FIELDS), REMOVED)


def dtype_edits(config: Mapping[str, Any], torch_dtype: str) -> dict[tuple[str, ...], str]:
    return dict.fromkeys(_paths(config, DTYPE_FIELDS), torch_dtype)


def _paths(config: Mapping[str, Any], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    nested = config.get("text_config")
    levels: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), config)]
    if isinstance(nested, Mapping):
        levels.append((("text_config",), nested))
    return [(*level, name) for level, values in levels for name in names if name in values]
