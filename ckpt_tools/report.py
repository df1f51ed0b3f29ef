"""A Report gathers findings while work goes on, and raises once with all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from .errors import CkptError, Finding

SHOWN = 12
T = TypeVar("T")


def listed(names: Iterable[str], shown: int = SHOWN) -> str:
    """The first names of a list and how many more there are."""
    every = list(names)
    more = f", and {len(every) - shown} more" if len(every) > shown else ""
    return ", ".join(every[:shown]) + more


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
