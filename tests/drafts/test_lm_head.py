"""A head without an lm_head gets the target's rows on request (sgl-project/sglang#27908: accept length 1.00, no message)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.drafts.manifest import read_manifest
from tests.checkpoints import changed, hf_tensors
from tests.conftest import Command
from tests.drafts.heads import IDS, eagle, eagle3, target

FLAG = "--lm-head-from-target"


def headless(folder: Path, **changes: Any) -> Path:
    head = eagle3(folder, **changes)
    with changed(head / "model.safetensors") as tensors:
        del tensors["lm_head.weight"]
    return head


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [8, 32])
@pytest.mark.parametrize("to", ["sglang", "speculators"])
def test_the_targets_rows_by_the_draft_vocabulary(
    rows: int, tied: bool, to: str, command: Command, tmp_path: Path
) -> None:
    """Row j is the target's row j + d2t[j]; of a tied target those are rows of its embedding."""
    model = target(tmp_path / "target", weights=True, tie_word_embeddings=tied)
    head = headless(tmp_path / "head", draft_vocab_size=rows)
    words = ("export-draft", head, tmp_path / "out", "--target", model, "--target-name", "org/m", "--format", to)
    refused = command(*words, "--json", code=1).finding("lm-head-missing")
    assert FLAG in refused["fix"] and ("null" in refused["fix"]) == (rows == 32)
    assert not (tmp_path / "out").exists()
    ran = command(*words, FLAG, "--json")
    assert "lm_head.weight" in ran.result["made"]
    found = hf_tensors(tmp_path / "out")
    table = hf_tensors(model)["model.embed_tokens.weight" if tied else "lm_head.weight"]
    ids = IDS if rows == 8 else list(range(32))
    assert found["lm_head.weight"].shape == (rows, 8)
    assert all(torch.equal(found["lm_head.weight"][row], table[ids[row]]) for row in range(rows))
    assert "lm_head.weight" in read_manifest(tmp_path / "out").provenance.made
    before = hf_tensors(head)
    assert all(torch.equal(found[n], t) for n, t in before.items() if n in found)


def test_together_with_a_map_from_a_file(command: Command, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target", weights=True), headless(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        del tensors["d2t"], tensors["t2d"]
    ids = [31, 30, 3, 4, 5, 0, 1, 9]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    words = ("export-draft", head, tmp_path / "out", "--target", model, "--vocab-map", tmp_path / "ids.json", FLAG)
    command(*words)
    found, table = hf_tensors(tmp_path / "out"), hf_tensors(model)["lm_head.weight"]
    assert torch.equal(found["lm_head.weight"], table[torch.tensor(ids)])
    command("verify-draft", tmp_path / "out", "--target", model)


def test_where_it_cannot_be(command: Command, tmp_path: Path, shared_tiny: Any) -> None:
    model = target(tmp_path / "target", weights=True)
    narrow = headless(tmp_path / "narrow", wide=8, hidden_size=6, target_hidden_size=8)
    with changed(narrow / "model.safetensors") as tensors:
        tensors["embed_tokens.weight"] = torch.ones(32, 6).bfloat16()
    outside = headless(tmp_path / "outside")
    with changed(outside / "model.safetensors") as tensors:
        tensors["d2t"][7] += 9
        tensors["t2d"] = torch.ones(32, dtype=torch.bool)
    cases = [
        (eagle3(tmp_path / "own"), model, "lm-head-not-taken"),
        (eagle(tmp_path / "one"), model, "lm-head-not-taken"),
        (headless(tmp_path / "null", draft_vocab_size=None), model, "lm-head-not-taken"),
        (narrow, model, "lm-head-not-taken"),
        (outside, model, "d2t-range"),
    ]
    for head, goal, code in cases:
        ran = command("export-draft", head, tmp_path / "out", "--target", goal, FLAG, "--json", code=1)
        assert code in ran.codes
        assert not (tmp_path / "out").exists()
    bare = target(tmp_path / "bare")
    command("export-draft", headless(tmp_path / "h"), tmp_path / "out", "--target", bare, FLAG, "--json", code=1)
    assert not (tmp_path / "out").exists()
