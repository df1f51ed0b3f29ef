"""A Report gathers findings while work goes on, and raises once with all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from .errors import CkptError, Finding

SHOWN, SHOWN_FOLDED = 12, 60
T = TypeVar("T")


def listed(names: Iterable[str], shown: int = SHOWN) -> str:
    """All names; of a long list those that differ only in their numbers as one, and how many of such there are beyond."""
    every = list(names)
    if len(every) > shown:
        every, shown = folded(every), SHOWN_FOLDED
    more = f", and {len(every) - shown} more" if len(every) > shown else ""
    return ", ".join(every[:shown]) + more


def folded(names: Iterable[str]) -> list[str]:
    """Names with the numbers among their dotted segments as ranges; each folded name stands for exactly its product.

    `a.0.x, a.1.x, a.2.y` is `a.{0..1}.x, a.2.y`.
    """
    items = [tuple(name.split(".")) for name in dict.fromkeys(names)]
    for place in reversed(range(max(map(len, items), default=0))):
        groups: dict[tuple[str, ...], list[int]] = {}
        for item in items:
            number = place < len(item) and item[place].isdecimal() and str(int(item[place])) == item[place]
            key = (*item[:place], "{}", *item[place + 1 :]) if number else item
            groups.setdefault(key, []).extend([int(item[place])] if number else ())
        items = [(*key[:place], ranges(found), *key[place + 1 :]) if found else key for key, found in groups.items()]
    return [".".join(item) for item in items]


def ranges(values: Iterable[int]) -> str:
    """0, 1, 2, 5 -> {0..2,5}; a single value as it is."""
    spans: list[list[int]] = []
    for value in sorted(values):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    text = ",".join(f"{a}..{b}" if a != b else str(a) for a, b in spans)
    return text if text.isdecimal() else "{" + text + "}"


@dataclass(slots=True)
class Report:
    """Findings in the order they were met."""

    findings: list[Finding] = field(default_factory=list)

    def error(self, code: str, what: str, **details: str) -> None:
        self.findings.append(Finding(code, what, **details))

    def warn(self, code: str, what: str, **details: str) -> None:
        self.findings.append(Finding(code, what, severity="warning", **details))

    def note(self, code: str, what: str, **details: str) -> None:
        self.findings.append(Finding(code, what, severity="note", **details))

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def raise_errors(self, kind: type[CkptError] = CkptError) -> None:
        """Raise `kind` with every error gathered so far, if there is any."""
        if errors := self.errors:
            raise kind(*errors)


class Outcome(NamedTuple, Generic[T]):
    """What came out of a piece of work, and what is to be said about it."""

    result: T
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)
