"""transformers' own `generate(use_mtp=True)` drafts and accepts the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate import chain
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.target import Target, load_target

from . import worlds
from .conftest import Clockwork

pytestmark = pytest.mark.oracle
NEW = 24
Round = tuple[tuple[int, ...], tuple[int, ...]]  # the text so far, what is drafted after it


def theirs(folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[Round]]:
    """The text that transformers generates with its MTP layers, and every round of drafts on the way."""
    from transformers.generation import candidate_generator

    rounds: list[Round] = []
    real = candidate_generator.MTPCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        candidates, logits = real(self, input_ids, *args, **kwargs)
        if candidates.shape[1] > input_ids.shape[1]:
            rounds.append((tuple(input_ids[0].tolist()), tuple(candidates[0, input_ids.shape[1] :].tolist())))
        return candidates, logits

    monkeypatch.setattr(candidate_generator.MTPCandidateGenerator, "get_candidates", watched)
    model, count = target.model, target.config.num_hidden_layers
    # The class's pattern of MTP keys holds the layer numbers of the releases.
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{count + k}\..*" for k in range(4)]
    model.generation_config.eos_token_id, model.generation_config.repetition_penalty = None, None
    made = model.generate(
        torch.tensor([worlds.START]), use_mtp=True, do_sample=False, max_new_tokens=NEW, pad_token_id=0
    )
    return made[0, len(worlds.START) :].tolist(), rounds


def ours(
    folder: Path, target: Target, steps: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[Round], Counters]:
    rounds: list[Round] = []
    real = chain.Chain.draft

    def watched(self: Any, steps: int, choose: Any) -> Any:
        draft = real(self, steps, choose)
        rounds.append(((worlds.START[0], *self._tokens), tuple(draft.tokens)))
        return draft

    monkeypatch.setattr(chain.Chain, "draft", watched)
    head, counters = build_head(open_draft(folder), target), Counters(steps)
    return speculative(target, head, worlds.START, Limits(NEW), counters).tokens, rounds, counters


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_rounds_texts_and_drafts_are_the_same(
    family: str, layers: int, clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = clockwork(family, noise=2.5, layers=2, mtp=layers)
    target = load_target(folder)
    found, rounds, counters = ours(folder, target, layers, monkeypatch)
    text, wanted = theirs(folder, target, monkeypatch)
    assert found == text == plain(target, worlds.START, Limits(NEW)).tokens
    assert 0 < counters.accepted < counters.proposed
    assert len(rounds) > 6
    assert rounds == wanted
