"""Other producers' own code as the tests call it, and what our modules answer to the same inputs.

scripts/test.sh puts the producers beside the environment; run alone, these tests are skipped where they are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ckpt_tools.drafts.spec import MTP, DraftSpec
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.head import Head, causal_mask
from ckpt_tools.speculate.target import load_target

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "producers_oracle.sh"
FOLDER = Path(os.environ.get("PRODUCERS_DIR", SCRIPT.parents[1] / "build" / "producers"))
WANTED = os.environ.get("PRODUCERS_ORACLE", "")
oracle = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(
        WANTED == "0" or (WANTED != "1" and not (FOLDER / ".ready").is_file()),
        reason="no producers (scripts/producers_oracle.sh setup)",
    ),
]
EXACT: dict[str, list[str]] = {"missing": [], "unexpected": [], "differing": []}


def producer(name: str, *words: object) -> dict[str, dict[str, Any]]:
    """Run a producer's script; what it said of each folder."""
    environment = {**os.environ, "PRODUCERS_PYTHON": sys.executable, "PRODUCERS_DIR": str(FOLDER)}
    ran = subprocess.run([SCRIPT, name, *map(str, words)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"folder"'))
    return {line.pop("folder"): line for line in lines}


def answers(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder.with_name(f"{folder.name}.answers.safetensors"))


@torch.no_grad()
def assert_same_answers(spec: DraftSpec, target: Path, theirs: dict[str, torch.Tensor]) -> None:
    """Our module of the head gives the producer's logits: of every first step, and of a step on what it fed back."""
    head = build_head(spec, load_target(target))
    ours = (_mtp if spec.kind == MTP else _eagle3)(head, theirs)
    for step, (mine, wanted) in enumerate(zip(ours, _rows(spec, theirs), strict=True)):
        assert wanted.std() > 0.1
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4, msg=lambda text, n=step: f"step {n}: {text}")


def _rows(spec: DraftSpec, theirs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    if spec.kind == MTP:
        return theirs["first"], theirs["second"]
    return theirs["first"][:, :-1], theirs["second"][:, -2:-1]


def _eagle3(head: Head, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows but the last as one pass; then the row that follows, fed with the state and the token of the last."""
    hidden, ids = given["hidden"][:, :-1], given["ids"]
    rows = hidden.shape[1]
    cache, places = head.new_cache(), torch.arange(rows + 1)[None]
    first = head(hidden, head.embed(ids[:, :-1]), places[:, :-1], cache, causal_mask(rows, 0, hidden))
    second = head(first.hidden[:, -1:], head.embed(ids[:, -1:]), places[:, -1:], cache, causal_mask(1, rows, hidden))
    return head.logits(first.features), head.logits(second.features)


def _mtp(head: Head, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Teacher forced, each step over all rows: row t joins the embedding of id t+1, then that of t+2."""
    rows = given["first"].shape[1]
    hidden, ids, places = given["hidden"][:, :rows], given["ids"], torch.arange(rows)[None]
    mask = causal_mask(rows, 0, hidden)
    first = head(hidden, head.embed(ids[:, 1 : rows + 1]), places, None, mask)
    second = head(first.hidden, head.embed(ids[:, 2 : rows + 2]), places, None, mask)
    return head.logits(first.features), head.logits(second.features)
