"""A quantised target and its head: what config.json says is left alone, and what is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...errors import Finding
from ...quantised import SUFFIXES, quantisation
from ...report import listed
from ..spec import EMBED, DraftSpec
from .pair import Pair

NAME = "quantisation"
# compressed-tensors, fp8 and AWQ, ModelOpt, Quark
LISTS = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude")
WEIGHT, REGEX = ".weight", "re:"
SCALES = (*SUFFIXES, "_packed", "_zero_point")


def check_quantisation(pair: Pair) -> None:
    """E4: every module that the list leaves out must be unquantised, and every unquantised one must be in the list."""
    spec = pair.spec
    scheme = quantisation(spec.config)
    if scheme is None:
        return
    field, patterns = _excluded(scheme)
    modules = _modules(spec)
    if not patterns and any(quantised for quantised in modules.values()):
        pair.passed(NAME, "scales for what is quantised", "no exclude list; the class keeps the rest")
        return
    unlisted = [name for name, quantised in modules.items() if not quantised and not matches(name, patterns)]
    listed_with_scales = [name for name, quantised in modules.items() if quantised and matches(name, patterns)]
    if unlisted:
        lines = ", ".join(f'"{name}"' for name in unlisted)
        pair.found(
            NAME,
            Finding(
                "quant-exclude",
                f"{len(unlisted)} modules are stored unquantised and {field} does not say so",
                str(spec.config_path),
                f"quantization_config.{field} with {lines}",
                str(list(patterns)),
                f"add to {field}: {lines}",
            ),
        )
    if listed_with_scales:
        pair.found(
            NAME,
            Finding(
                "quant-exclude",
                f"{field} excludes modules that are stored with scales",
                str(spec.config_path),
                "modules without scales",
                listed(listed_with_scales),
                f"take them out of {field}, or dequantise them",
            ),
        )
    if not unlisted and not listed_with_scales:
        pair.passed(NAME, f"{field} covers the unquantised modules", f"{len(modules)} modules")


def _excluded(scheme: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    field = next((name for name in LISTS if isinstance(scheme.get(name), list)), LISTS[0])
    return field, [str(pattern) for pattern in scheme.get(field) or ()]


def _modules(spec: DraftSpec) -> dict[str, bool]:
    """Linear modules under their names in the head -> whether they have scales."""
    stored = {entry.source: entry for name, entry in spec.tensors.items() if name != EMBED}
    return {
        name.removesuffix(WEIGHT): any(name + scale in stored for scale in SCALES)
        for name, entry in stored.items()
        if name.endswith(WEIGHT) and len(entry.shape) == 2
    }


def matches(name: str, patterns: Sequence[str]) -> bool:
    """As loaders read such lists: globs, `re:` expressions, names, names of a module above."""
    return any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith(REGEX):
        return re.match(pattern.removeprefix(REGEX), name) is not None
    return fnmatchcase(name, pattern) or name == pattern or name.startswith(pattern + ".")
