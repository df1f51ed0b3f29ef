"""`tune-draft` as a command: what it refuses before it trains, what it tells and registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.tune import run as runs

from ..conftest import Command
from .jobs import prompts_in


def test_the_command_tunes_verifies_and_registers(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, command: Command
) -> None:
    target, head = folders["eagle3"]
    words = ["tune-draft", target, head, tmp_path / "out", "--prompts", prompts_in(tmp_path), "--held-out", 2]
    words += [
        "--rounds",
        1,
        "--updates",
        1,
        "--max-new-tokens",
        6,
        "--register",
        "mine",
        "--registry",
        tmp_path / "heads",
    ]
    dry = command(*words, "--dry-run", "--json").envelope["result"]
    assert dry["dry_run"]
    assert not (tmp_path / "out").exists()
    result = command(*words, "--json").envelope["result"]
    assert result["written"]["verified"]
    assert result["registered"] == "mine"
    entry = command("registry", "show", "mine", "--registry", tmp_path / "heads", "--json").envelope["result"]["heads"][
        0
    ]
    assert entry["entry"]["provenance"]["tuning"]["updates"] == 1
    assert entry["entry"]["measured"]["accept_length"] == result["after"]["accept_length"]
    command("verify-draft", tmp_path / "out", "--target", target)


def tuning(folders: dict[str, tuple[Path, Path]], folder: Path) -> list[Any]:
    """Words of a short run that registers what it writes."""
    words = ["tune-draft", *folders["eagle3"], folder / "out", "--prompts", prompts_in(folder), "--rounds", 1]
    words += ["--updates", 1, "--max-new-tokens", 4, "--save-every", 0, "--registry", folder / "heads", "--json"]
    return [*words, "--register"]


def add_another(name: str, folders: dict[str, tuple[Path, Path]], folder: Path, command: Command) -> None:
    target, head = folders["eagle3"]
    command("export-draft", head, folder / "theirs", "--target", target)
    command("registry", "add", folder / "theirs", "--target", target, "--name", name, "--registry", folder / "heads")


def test_the_name_is_checked_before_anything_is_trained(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_another("theirs", folders, tmp_path, command)
    monkeypatch.setattr(runs, "load_target", None)
    words = tuning(folders, tmp_path)
    assert command(*words, "a/b", code=2).codes == ["name-invalid"]
    assert command(*words, "theirs", "--dry-run", code=5).codes == ["name-taken"]
    refused = command(*words, "theirs", "--overwrite", code=5)
    assert refused.codes == ["name-taken"]
    assert "registry remove theirs" in refused.envelope["findings"][0]["fix"]


def test_overwriting_a_head_overwrites_its_entry(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, command: Command
) -> None:
    words = tuning(folders, tmp_path)
    command(*words, "mine")
    assert command(*words, "mine", "--overwrite").envelope["result"]["registered"] == "mine"
    command("registry", "check", "mine", "--registry", tmp_path / "heads")


def test_a_head_that_cannot_be_registered_is_still_told(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run took the name while this one trained."""
    original = runs.tune

    def overtaken(*given: Any) -> Any:
        done = original(*given)
        add_another("x", folders, tmp_path, command)
        return done

    monkeypatch.setattr(runs, "tune", overtaken)
    told = command(*tuning(folders, tmp_path), "x", code=5)
    assert "name-taken" in told.codes
    assert told.envelope["result"]["written"]
    assert told.envelope["result"]["registered"] == ""


def test_nothing_to_learn_from_is_refused(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, command: Command
) -> None:
    target, head = folders["eagle3"]
    words = ["tune-draft", target, head, tmp_path / "out"]
    assert "one of --prompts and --samples" in command(*words, code=2).err
    assert "all of them held out" in command(*words, "--prompts", prompts_in(tmp_path), "--held-out", 9, code=1).err
    (tmp_path / "bad.jsonl").write_text('{"prompt": "w3", "response": "w4 w5"}\n{"text": 1}\n')
    assert "line 2" in command(*words, "--samples", tmp_path / "bad.jsonl", code=1).err
    assert command(*words, "--prompts", tmp_path / "none", code=3).err
