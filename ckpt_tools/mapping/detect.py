"""Which named variant a set of stored Megatron keys follows: detected from the keys, never from a model_type."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from .rules import Naming, Rule, Spelling, Table, megatron_shapes, on_axis, without

LAYERS = "layers"
STACKED, PER_LAYER = "stacked", "per-layer"


@dataclass(slots=True)
class Detected:
    """The naming of a checkpoint; `variants` maps a variant's kind to the values seen with an example key each."""

    naming: Naming
    variants: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def mixed(self) -> dict[str, dict[str, str]]:
        """Kinds of which a checkpoint shows more than one value."""
        return {kind: values for kind, values in self.variants.items() if len(values) > 1}


def detect(table: Table, keys: Set[str]) -> Detected:
    """The naming under which most rules find their keys. Rules whose keys are all absent keep the canonical spelling."""
    variants: dict[str, dict[str, str]] = {}
    chosen: dict[str, Spelling] = {}
    stacked = _is_stacked(table, keys, variants)
    for rule in table.rules:
        present = [(s, found) for s in rule.spellings if (found := _present(rule, s, stacked, keys))]
        for spelling, found in present:
            for kind, value in spelling.variants:
                variants.setdefault(kind, {}).setdefault(value, found[0])
        if present:
            canonical = rule.spellings[0].template
            chosen[canonical] = max(present, key=lambda pair: len(pair[1]))[0]
    return Detected(Naming(stacked, chosen), variants)


def _present(rule: Rule, spelling: Spelling, stacked: bool, keys: Set[str]) -> list[str]:
    template = without(spelling.template, "layer") if stacked else spelling.template
    return [name for name in megatron_shapes(rule, template) if name in keys]


def _is_stacked(table: Table, keys: Set[str], variants: dict[str, dict[str, str]]) -> bool:
    seen = variants.setdefault(LAYERS, {})
    for rule in table.rules:
        if not any(axis.name == "layer" for axis in rule.axes):
            continue
        for spelling in rule.spellings:
            for value, stacked in ((STACKED, True), (PER_LAYER, False)):
                if found := _present(rule, spelling, stacked, keys):
                    seen.setdefault(value, found[0])
    return STACKED in seen


def mtp_layers_present(table: Table, keys: Set[str], hf: bool) -> set[int]:
    """MTP layers of which at least one tensor is stored, among those that `table` enumerates."""
    return {
        layer
        for rule in table.rules
        for template in (rule.hf if hf else [spelling.template + rule.stored[0][0] for spelling in rule.spellings])
        for layer, name in on_axis(template, rule.axes, "mtp", hf).items()
        if name in keys
    }
