"""The experiment's own parts: its task, its comparison, its table; and all of it, a few steps each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import online_sft
import pytest
from online_sft import HELD, TRAINED, Plan, compared, main, report, restored, rows, table
from task_texts import task_text, task_texts

from ckpt_tools.drafts.spec import open_draft

from .heads import pair


def test_the_task_is_right_and_its_held_out_part_is_new() -> None:
    trained, held = task_texts(TRAINED, 2000), task_texts(HELD, 50)
    assert not {text.prompt for text in held} & {text.prompt for text in trained}
    for text in held:
        first, sign, second, result = re.search(r"(\d+) ([+-]) (\d+) = (\d+)", text.response).groups()  # type: ignore[union-attr]
        assert int(first) + int(second) * (1 if sign == "+" else -1) == int(result) >= 0
        assert {first, second} <= set(re.findall(r"\d+", text.prompt))
    assert task_text(7) == task_text(7) != task_text(8)


def test_what_is_restored_is_counted_without_the_targets_own_token() -> None:
    assert restored(1.5, 1.45) == pytest.approx(0.9)


def test_every_way_decodes_the_same_text_in_one_run(tmp_path: Path) -> None:
    target, head = pair("eagle3", tmp_path)
    plan = Plan(new_tokens=8)
    found = compared(target, {"frozen": head, "tuned": head}, ["w3 w4 w5", "w7 w9"], plan)
    assert list(found) == ["none", "frozen", "tuned"]
    assert len({kind.tokens for kind in found.values()}) == 1
    assert found["frozen"].accept_length == found["tuned"].accept_length
    assert all(kind.seconds > 0 for kind in found.values())
    figures = rows(found)
    assert figures["none"]["ratio"] == 1
    assert figures["tuned"]["ratio"] == pytest.approx(found["none"].seconds / found["tuned"].seconds)
    assert rows(compared(target, {"frozen": head}, ["w3"], plan, alone=False))["frozen"]["ratio"] is None


def test_a_head_that_changes_the_text_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpt_tools.speculate import decode

    target, head = pair("eagle3", tmp_path)
    monkeypatch.setattr(decode, "verifier", lambda *_: lambda draft, logits: ([0], [draft.tokens[0], 5]))
    with pytest.raises(ValueError, match="changed the text"):
        compared(target, {"frozen": head}, ["w3 w4 w5"], Plan(new_tokens=8))


@pytest.mark.real
@pytest.mark.huge
def test_the_whole_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([str(tmp_path), "--quick"]) == 0
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert results["target_unchanged"]
    assert list(results["after"]["task"]) == ["none", "frozen", "tuned"]
    assert results["drift"]["losses"][-1] < results["drift"]["losses"][0]
    assert len(table(results)) > 5
    assert "<svg" in report(results)
    assert open_draft(tmp_path / "tuned").kind == "eagle3"
    assert online_sft.SLIME == {"none": 1219, "frozen": 1464, "tuned": 1667}
