"""A bf16 head in a quantised target: the modules that the target's quantisation must leave alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CkptError, error
from ...quantised import FIELD, FLOAT8, quantisation
from ..spec import DraftSpec

# Where each method lists the modules that are not quantised; lists that are there already are extended.
LISTS = {
    "fp8": "modules_to_not_convert",
    "compressed-tensors": "ignore",
    "modelopt": "exclude_modules",
    "awq": "modules_to_not_convert",
}
KNOWN_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
EACH_EXPERT = "compressed-tensors"  # it looks modules up one by one; the others know the experts as one module
EXPERTS, WEIGHT = "experts", "weight"


def exclusions(spec: DraftSpec, config: Mapping[str, Any], where: str) -> dict[tuple[str, ...], Any]:
    """Edits of the target's config; none if the target is not quantised or the head is as well.

    Raises CkptError for a method of which nothing is known, and for a quantised head in a target that is not.
    """
    scheme = quantisation(config)
    quantised = any(entry.dtype in FLOAT8 for entry in spec.tensors.values())
    if scheme is None and quantised:
        raise error(
            CkptError,
            "quantisation-differs",
            "the head is quantised and the target is not",
            where=where,
            expected="a head in bfloat16, or the quantised release of the target",
            actual="float8 weights with scales",
            fix="merge it into the target that it was extracted from",
        )
    if scheme is None or quantised:
        return {}
    method = str(scheme.get("quant_method"))
    lists = [name for name in KNOWN_LISTS if isinstance(scheme.get(name), list)] or [LISTS.get(method, "")]
    if not all(lists):
        raise error(
            CkptError,
            "quant-exclude-unknown",
            f"where quant_method {method!r} lists unquantised modules is not known",
            where=where,
            expected=", ".join(LISTS),
            actual=method,
            fix="give the config an (empty) list of excluded modules under the name that the method reads",
        )
    wanted = modules(spec.tensors, method == EACH_EXPERT)
    level = () if isinstance(config.get(FIELD), Mapping) else ("text_config",)
    edits: dict[tuple[str, ...], Any] = {}
    for name in lists:
        present = list(scheme.get(name) or ())
        edits[*level, FIELD, name] = present + [module for module in wanted if module not in present]
    return edits


def modules(names: Iterable[str], each_expert: bool) -> list[str]:
    """Modules of weights, in order, each once; norms and routers do no harm in the list."""
    found: list[str] = []
    for name in names:
        segments = name.split(".")
        if segments[-1] == WEIGHT and (each_expert or EXPERTS not in segments):
            found.append(".".join(segments[:-1]))
        if EXPERTS in segments:
            found.append(".".join(segments[: segments.index(EXPERTS) + 1]))
    return list(dict.fromkeys(found))
