"""schemas/ is what the code makes, and describes every command."""

from __future__ import annotations

import json

import pytest
from jsonschema import ValidationError
from make_schemas import ERROR, RESULTS, SCHEMAS, rendered

from ckpt_tools.cli import COMMANDS
from tests.command import validator
from tests.conftest import Command


def test_the_files_are_up_to_date() -> None:
    """If this fails, run scripts/make_schemas.py and look at the difference: people's scripts read these objects."""
    stored = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.iterdir()}
    assert stored == rendered()


def test_every_command_has_one() -> None:
    assert RESULTS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", [*RESULTS, ERROR])
def test_they_are_strict(name: str, command: Command) -> None:
    """Another command, a field more, a field less, a wrong type: none of it passes."""
    valid = command("families", "--json").envelope if name == "families" else None
    failed = {"ok": False, "command": name, "version": "1", "exit_code": 1, "findings": [], "result": None}
    for good in filter(None, (valid, failed)):
        validator(name).validate(good)
        for bad in (
            {**good, "more": 1},
            {key: value for key, value in good.items() if key != "result"},
            {**good, "exit_code": 9},
            {**good, "findings": [{"code": "x"}]},
            {**good, "result": {"other": 1}},
            *([{**good, "command": "another"}] if name != ERROR else []),
        ):
            with pytest.raises(ValidationError):
                validator(name).validate(bad)


def test_failures_and_findings_have_one_place(command: Command) -> None:
    """Findings stand in the envelope and nowhere else."""
    for name, text in rendered().items():
        result = json.loads(text)["$defs"]
        assert [kind for kind, part in result.items() if "findings" in part["properties"]] == [], name
