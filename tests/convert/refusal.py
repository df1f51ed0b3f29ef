"""What every refusal of a conversion looks like."""

from __future__ import annotations

from pathlib import Path

from tests.command import Ran


def check_refusal(ran: Ran, code: str, target: Path) -> None:
    """The code is there, every error says what, where, expected, actual and fix, and nothing was left behind."""
    assert code in ran.codes
    for finding in ran.findings:
        assert finding["severity"] == "error"
        assert all(finding[part] for part in ("what", "where", "expected", "actual", "fix")), finding
    assert not list(target.parent.glob(f"{target.name}*"))
