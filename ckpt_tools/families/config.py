"""Reading config.json for decisions: plain JSON, no defaults, every problem gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..report import Report

# What is enumerated name by name, and how much of it no model has: a table of a mistyped count would fill the memory.
MOST = dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4096)
MOST |= {"num_hidden_layers": 1024}
MOST_MTP = 64
LARGEST = (1 << 31) - 1
MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_ABSENT = object()


@dataclass(slots=True)
class Fields:
    """A config.json with its problems.

    Multimodal configs nest the language model in `text_config`; a field may stand at either level, at both only with
    the same value.
    """

    config: Mapping[str, Any]
    where: str
    report: Report = field(default_factory=Report)

    def _levels(self) -> list[tuple[str, Mapping[str, Any]]]:
        nested = self.config.get("text_config")
        levels = [("text_config", nested)] if isinstance(nested, Mapping) else []
        return [*levels, ("top level", self.config)]

    def model_type(self) -> str:
        """The top-level model_type: it names the wrapper, which decides the tensor names."""
        value = self.config.get("model_type")
        if not isinstance(value, str):
            self.report.error(
                "config-field-missing",
                "config.json names no model_type",
                where=self.where,
                expected="a string such as 'qwen3'",
                actual=repr(value),
                fix="add the model_type of the original release",
            )
            self.report.raise_errors()
        return str(value)

    def lookup(self, name: str) -> tuple[str, Any]:
        """(level, value) of a field, or ("", absent marker); both levels with different values are a conflict."""
        found = [(level, values[name]) for level, values in self._levels() if values.get(name) is not None]
        if len(found) == 2 and found[0][1] != found[1][1]:
            self.report.error(
                "config-conflict",
                f"{name} has two values",
                where=self.where,
                expected="one value",
                actual=", ".join(f"{level}: {value!r}" for level, value in found),
                fix=f"make {name} agree at both levels of config.json",
            )
        return found[0] if found else ("", _ABSENT)

    def has(self, name: str) -> bool:
        return self.lookup(name)[1] is not _ABSENT

    def _required(self, name: str, kind: type, what: str) -> Any:
        value = self.lookup(name)[1]
        if value is _ABSENT:
            self.report.error(
                "config-field-missing",
                f"config.json has no {name}",
                where=self.where,
                expected=what,
                actual="absent",
                fix=f"add {name} as the original release states it; it is never guessed",
            )
            return None
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not right:
            self.wrong(name, what, value)
            return None
        return value

    def wrong(self, name: str, expected: str, actual: object) -> None:
        self.report.error(
            "config-value",
            f"{name} has a value that cannot be",
            where=self.where,
            expected=expected,
            actual=repr(actual),
            fix=f"correct {name} in config.json",
        )

    def size(self, name: str) -> int:
        """A positive integer field; 1 stands in after an error so that the other fields are still checked."""
        most = MOST.get(name, LARGEST)
        expected = f"a positive integer up to {most:,}"
        value = self._required(name, int, expected)
        if value is None or 1 <= value <= most:
            return value or 1
        self.wrong(name, expected, value)
        return 1

    def first(self, *names: str) -> str:
        """The first of several spellings of a field that the config has; the first of all if it has none."""
        return next((name for name in names if self.has(name)), names[0])

    def number(self, name: str) -> float:
        value = self._required(name, float, "a number")
        return value if value is not None else 1.0

    def flag(self, name: str) -> bool:
        return bool(self._required(name, bool, "true or false"))

    def value(self, name: str) -> Any:
        """The value of an optional field, or None."""
        value = self.lookup(name)[1]
        return None if value is _ABSENT else value

    def mtp_layers(self) -> int:
        """Declared MTP layers: absent, null and 0 all mean none; every spelling and level must agree."""
        counts: dict[str, int] = {}
        for name in MTP_FIELDS:
            for level, values in self._levels():
                value = values.get(name)
                if value is None:
                    continue
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_MTP:
                    self.wrong(name, f"a count of MTP layers, 0 to {MOST_MTP}", value)
                else:
                    counts[f"{name} ({level})"] = value
        if len(set(counts.values())) > 1:
            self.report.error(
                "config-conflict",
                "the number of MTP layers has two values",
                where=self.where,
                expected="one value",
                actual=", ".join(f"{name}: {value}" for name, value in counts.items()),
                fix="make them agree in config.json",
            )
        return next(iter(counts.values()), 0)

    def done(self) -> None:
        """Raise with every problem met so far."""
        self.report.raise_errors()
