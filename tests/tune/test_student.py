"""Training over whole rows is what the decoder's chain does row by row, and moves the head alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ckpt_tools.speculate.chain import Chain
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.target import Run, Target
from ckpt_tools.tune import student as students
from ckpt_tools.tune.objective import mtp_losses
from ckpt_tools.tune.rollout import features
from ckpt_tools.tune.samples import Sample
from ckpt_tools.tune.student import Student, chain_mask, draft_ids

from .heads import KINDS, loaded

STEPS, LENGTH, PROMPT = 3, 9, 4
IDS = torch.tensor([5, 7, 40, 8, 15, 33, 9, 31, 50])  # the reduced vocabulary has neither 5 nor 9
# Seen: 1e-6 of about 10, fp32 sums in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Head]:
    target, head = loaded(request.param, tmp_path_factory.mktemp(request.param))
    return target, head.float()


def rows_of(target: Target, head: Head) -> Tensor:
    return features(target, head.boundaries, Sample(tuple(IDS.tolist()), PROMPT))


def chain_logits(target: Target, head: Head, start: int) -> list[Tensor]:
    """What the decoder computes for the drafts after row `start`, each draft being the text's own token."""
    chain, run = Chain(head), Run(target, head.boundaries)
    chain.extend(run.feed(IDS[: start + 1].tolist())[1], IDS[1 : start + 2].tolist())
    steps = min(STEPS, head.depth) if head.depth > 1 else STEPS
    found: list[Tensor] = []

    def teacher(logits: Tensor) -> tuple[int, None]:
        found.append(logits)
        return int(IDS[start + 1 + len(found)]), None

    with torch.no_grad():
        chain.draft(min(steps, LENGTH - start - 2), teacher)
    return found


def student_logits(target: Target, head: Head) -> list[Tensor]:
    """Per step: the logits [T, V] of every row."""
    student = Student(head, STEPS)
    everything = torch.ones(1, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        reads = list(student._reads(IDS[None], rows_of(target, head)[None], everything))
    return [head.logits(read[0]) for _, read in reads]


def furthest(target: Target, head: Head) -> float:
    """The largest difference, of every start and step, relative to the logits' scale."""
    ours = student_logits(target, head)
    shift = 0 if head.depth > 1 else 1  # of one layer, step s of the chain from `start` is row start + s
    found = [
        float((ours[step][start + shift * step] - theirs).abs().max() / theirs.abs().max())
        for start in range(LENGTH - 2)
        for step, theirs in enumerate(chain_logits(target, head, start))
    ]
    assert len(found) > LENGTH
    return max(found)


def test_every_row_computes_what_the_decoders_chain_computes(pair: tuple[Target, Head]) -> None:
    assert furthest(*pair) < TOLERANCE


def first_step_everywhere(length: int, step: int, like: Tensor) -> Tensor:
    """Later steps that see the certain rows after their start as well."""
    mask = chain_mask(length, step, like)
    mask[..., :length] = chain_mask(length, 0, like)[..., :length]
    return mask


def own_step_only(length: int, step: int, like: Tensor) -> Tensor:
    """Later steps that do not see the steps between."""
    mask = chain_mask(length, step, like)
    mask[..., length : step * length] = torch.finfo(like.dtype).min
    return mask


@pytest.mark.parametrize("fault", [first_step_everywhere, own_step_only])
@pytest.mark.parametrize("pair", ["mtp", "eagle", "eagle3"], indirect=True)  # several layers have no chain
def test_a_wrong_mask_is_noticed(pair: tuple[Target, Head], fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(students, "chain_mask", fault)
    assert furthest(*pair) > 100 * TOLERANCE


def batch(target: Target, head: Head) -> tuple[Tensor, Tensor, Tensor]:
    return IDS[None], rows_of(target, head)[None], (torch.arange(LENGTH) >= PROMPT)[None]


@pytest.mark.parametrize("pair", ["mtp", "mtp2", "eagle"], indirect=True)  # EAGLE-3 has a vocabulary of its own
def test_the_first_steps_are_the_mtp_objective(pair: tuple[Target, Head]) -> None:
    """One step of a chain, or every one of several layers, is `mtp_losses` with the target's embedding and lm_head."""
    target, head = pair
    depths = head.depth
    ids, rows, generated = batch(target, head)
    found = Student(head, depths)(ids, rows, generated)
    positions = torch.arange(LENGTH)[None]
    mask = students.causal_mask(LENGTH, 0, rows)
    layers = [lambda h, e, k=k: head(h, e, positions, None, mask, k).hidden for k in range(depths)]
    expected = mtp_losses(layers, target.model.get_input_embeddings(), target.model.lm_head, ids, rows, generated)
    assert found.totals.tolist() == pytest.approx([float(loss.total.detach()) for loss in expected], rel=1e-5)
    assert found.counts.tolist() == [int(loss.count) for loss in expected]


def moved(target: Target, head: Head) -> tuple[set[str], set[str]]:
    """The parameters of target and head that the loss has a gradient for, the target's being trainable too."""
    modules = (target.model, head)
    for module in modules:
        module.requires_grad_(True)
    try:
        Student(head, STEPS)(*batch(target, head)).loss.backward()
        found = [
            {name for name, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
            for module in modules
        ]
        return found[0], found[1]
    finally:
        for module in modules:
            module.zero_grad(set_to_none=True)
            module.requires_grad_(False)


def test_only_the_head_moves(pair: tuple[Target, Head]) -> None:
    of_target, of_head = moved(*pair)
    assert of_target == set()
    assert of_head == {name for name, _ in pair[1].named_parameters()}


@pytest.mark.parametrize("part", ["embedding", "hidden states"])
def test_a_gradient_that_leaks_into_the_target_is_noticed(
    pair: tuple[Target, Head], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = pair
    if part == "embedding":
        embedding = target.model.get_input_embeddings()
        monkeypatch.setattr(type(head), "embed", lambda self, ids: embedding(ids))
        assert "model.embed_tokens.weight" in moved(target, head)[0]
        return
    boundaries = head.boundaries

    def attached(target: Target, head: Head) -> Tensor:
        out = target.body(input_ids=IDS[None], output_hidden_states=True)
        states = [out.hidden_states[k] for k in boundaries] or [out.last_hidden_state]
        return torch.cat(states, -1)[0]

    monkeypatch.setitem(globals(), "rows_of", attached)
    assert "model.layers.0.mlp.up_proj.weight" in moved(target, head)[0]


def test_only_generated_labels_count(pair: tuple[Target, Head]) -> None:
    """Of n generated tokens the first is no label with a generated input; a chain loses nothing per step but its start."""
    target, head = pair
    ids, rows, generated = batch(target, head)
    known = draft_ids(head)[ids[0]] >= 0
    found = Student(head, STEPS)(ids, rows, generated).counts.tolist()
    # Label t needs inputs t - 1 (and, for the drafts before, rows from 0 on, which the prompt has enough of).
    expected = int(known[PROMPT + 1 :].sum())
    if head.depth == 1:
        assert found == [expected] * STEPS
    else:
        assert found == [expected, int(known[PROMPT + 1 :].sum())]


def test_padding_changes_nothing(pair: tuple[Target, Head]) -> None:
    target, head = pair
    ids, rows, generated = batch(target, head)
    padded = (
        torch.cat([ids, ids[:, :3]], 1),
        torch.cat([rows, rows[:, :3]], 1),
        torch.cat([generated, torch.zeros(1, 3, dtype=torch.bool)], 1),
    )
    with torch.no_grad():
        alone, together = Student(head, STEPS)(ids, rows, generated), Student(head, STEPS)(*padded)
    assert together.totals.tolist() == pytest.approx(alone.totals.tolist(), rel=1e-5)
    assert torch.equal(together.counts, alone.counts)


def test_a_reduced_vocabulary_drafts_what_it_has(pair: tuple[Target, Head]) -> None:
    _, head = pair
    known = draft_ids(head)
    drafts = torch.arange(int(known.max()) + 1)
    assert torch.equal(known[head.target_ids(drafts)], drafts)
    assert int((known >= 0).sum()) == len(drafts)
