"""Errors that say what, where, expected, actual and how to fix, and that know their exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_AUTHORISED = 4
    OUTPUT_EXISTS = 5
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, doubtful or worth knowing.

    `code` is stable and machine-readable; `severity` is "error", "warning" or "note".
    """

    code: str
    what: str
    where: str = ""
    expected: str = ""
    actual: str = ""
    fix: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        for label, text in (
            ("where", self.where),
            ("expected", self.expected),
            ("actual", self.actual),
            ("fix", self.fix),
        ):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(lines)


class CkptError(Exception):
    """Base of every error a user can meet; carries its findings and its exit code."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings


class UsageProblem(CkptError):
    """The command cannot mean what it says."""

    exit_code = ExitCode.USAGE


class NotFound(CkptError):
    """An input does not exist or cannot be read."""

    exit_code = ExitCode.NOT_FOUND


class NotAuthorised(CkptError):
    """The Hub refuses access."""

    exit_code = ExitCode.NOT_AUTHORISED


class OutputExists(CkptError):
    """The destination is already there."""

    exit_code = ExitCode.OUTPUT_EXISTS


def error(kind: type[CkptError], code: str, what: str, **details: str) -> CkptError:
    """An exception of `kind` with one finding; `details` are Finding's other fields."""
    return kind(Finding(code, what, **details))
