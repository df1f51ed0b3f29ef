"""The README shows the support matrix that the tables make."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Command

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- families -->", "<!-- /families -->"


def test_the_readme_shows_the_matrix(command: Command) -> None:
    """If this fails, put the output of `ckpt-tools families --markdown` between the markers."""
    text = README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == command("families", "--markdown").out.strip()
