"""Running the command line in this process, and what came out of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas"


@cache
def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@dataclass(frozen=True)
class Ran:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The object that --json printed."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = self.envelope["result"]
        return value

    @property
    def findings(self) -> list[dict[str, str]]:
        value: list[dict[str, str]] = self.envelope["findings"]
        return value

    @property
    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.findings]

    def finding(self, code: str) -> dict[str, str]:
        """The one finding of that code."""
        (found,) = [finding for finding in self.findings if finding["code"] == code]
        return found


def check_envelope(ran: Ran, schema: str) -> None:
    """Valid against the schema, and consistent with the exit code."""
    validator(schema).validate(ran.envelope)
    assert ran.envelope["exit_code"] == ran.code
    assert ran.envelope["ok"] == (ran.code == 0)
    assert ran.err == ""
