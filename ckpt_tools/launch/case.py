"""What is checked: inputs as read, and where every check puts what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..drafts.checks.pair import OK, SKIPPED, Check
from ..drafts.formats.targets import Target
from ..drafts.spec import DraftSpec
from ..errors import Finding
from ..families.base import Family
from ..families.dims import Dims
from ..model import Model
from ..report import Report
from .flags import Flags, Given
from .releases import Release

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HfTarget:
    """A Hugging Face model: its config, the names that its index or headers list, and the MTP layers among them.

    `mtp` is None where no names are known (a config alone) or no table knows the family.
    """

    read: Target
    names: frozenset[str]
    mtp: int | None


@dataclass
class Case:
    """`training` and `serving` are the flags of both sides, those of SGLang without slime's prefix; `slime` where the script is
    one of slime's. `stored` is the torch-dist checkpoint, `head` the draft as read, of which `far` are large tensors that are
    on the Hub."""

    release: Release
    training: Flags = field(default_factory=Flags)
    serving: Flags = field(default_factory=Flags)
    slime: bool = False
    target: HfTarget | None = None
    stored: Model | None = None
    draft: Path | None = None
    far: bool = False
    head: DraftSpec | None = None
    report: Report = field(default_factory=Report)
    checks: list[Check] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)

    # --- what the model is

    @property
    def family(self) -> Family | None:
        return self.stored.family if self.stored else self.target.read.family if self.target else None

    @property
    def dims(self) -> Dims | None:
        return self.stored.dims if self.stored else self.target.read.dims if self.target else None

    @property
    def layers(self) -> int:
        """Decoder layers; 0 if nothing tells."""
        return self.dims.num_hidden_layers if self.dims else 0

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.target.read.config) if self.target else self.stored.config if self.stored else {}

    @property
    def mtp(self) -> int | None:
        """MTP layers of the checkpoint that is trained, else of the target; None if nothing tells."""
        return self.stored.mtp if self.stored else self.target.mtp if self.target else None

    @property
    def model_path(self) -> str:
        """Where the dimensions come from."""
        if self.stored:
            return str(self.stored.store.root)
        return str(self.target.read.config_path) if self.target else ""

    # --- what was found

    def passed(self, name: str, expected: object, actual: object) -> None:
        self.checks.append(Check(name, OK, str(expected), str(actual)))

    def skipped(self, name: str, why: str) -> None:
        self.checks.append(Check(name, SKIPPED, "", why))

    def found(self, name: str, finding: Finding) -> None:
        """A line and its finding."""
        self.report.findings.append(finding)
        self.checks.append(Check(name, finding.severity, finding.expected, finding.actual, finding.code))

    def note(self, code: str, what: str, **details: str) -> None:
        self.report.note(code, what, **details)

    # --- values of flags

    def number(self, flags: Flags, *names: str) -> int | None:
        return self.value(flags, int, "a whole number", *names)

    def size(self, flags: Flags, *names: str) -> int | None:
        return self.value(flags, _at_least_one, "a whole number, 1 or more", *names)

    def text(self, flags: Flags, *names: str) -> str | None:
        return self.value(flags, str, "a value", *names)

    def value(self, flags: Flags, kind: Callable[[str], T], what: str, *names: str) -> T | None:
        """The value of a flag, None if it is not given; a value that is not known or no such value is a finding, once."""
        given = flags.first(*names)
        if given is None or not self.readable(given):
            return None
        try:
            (word,) = given.values
            return kind(word)
        except ValueError:
            self._unreadable(given, "flag-malformed", f"--{given.flag} has a value that cannot be", what)
            return None

    def readable(self, given: Given) -> bool:
        """Whether the value of a flag is known; it is a finding if not."""
        if given.unknown:
            self._unreadable(
                given,
                "flag-unresolved",
                f"the value of --{given.flag} is not known",
                "a value that follows from the script",
                f"{given.unknown}: {given.words}",
                "give the variable with --set NAME=VALUE, or the flag with --args",
            )
        return not given.unknown

    def _unreadable(self, given: Given, code: str, what: str, expected: str, actual: str = "", fix: str = "") -> None:
        if given.flag not in self.unread:
            self.unread.add(given.flag)
            fix = fix or "correct the script"
            self.found(f"--{given.flag}", Finding(code, what, given.where, expected, actual or given.words, fix))


def _at_least_one(word: str) -> int:
    if (number := int(word)) < 1:
        raise ValueError
    return number


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
