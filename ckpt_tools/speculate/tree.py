"""Drafting a tree: several likely tokens at every step, of which the best are verified together.

As SGLang's worker does (0.5.23, eagle_worker_v2.py `draft_forward`, spec_utils.py `select_top_k_tokens`, eagle_utils.py
`organize_draft_results`). A token's score is the product of the probabilities that the head gave the tokens on its way. The
last certain row gives the first `topk` tokens; each step runs a row for each of them and keeps the `topk` best of the
`topk` x `topk` tokens that follow. Of all tokens that were scored, the best become the draft. A row attends to its own
lane's rows of the steps before, which are those of its ancestors only where the lane kept to one branch: SGLang does not move
keys and values when another branch takes the lane over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import UsageProblem, error
from .chain import Chain
from .draft import ROOT, Draft


@dataclass(frozen=True, slots=True)
class TreeShape:
    """`steps` deep, `topk` lanes wide, `drafts` tokens in all: SGLang's num_steps, eagle_topk, num_draft_tokens - 1."""

    steps: int
    topk: int
    drafts: int

    @property
    def chain(self) -> bool:
        return self.topk == 1

    @property
    def largest(self) -> int:
        """How many tokens are scored: no draft can have more."""
        return self.topk + (self.steps - 1) * self.topk**2


def chain_of(steps: int) -> TreeShape:
    return TreeShape(steps, 1, steps)


def shape_of(steps: int, topk: int, num_draft_tokens: int | None) -> TreeShape:
    """From SGLang's three numbers; a chain needs no third. Raises UsageProblem where they do not go together."""
    largest = TreeShape(steps, topk, 0).largest
    if num_draft_tokens is None and topk == 1:
        return chain_of(steps)
    least = largest if topk == 1 else 1
    if num_draft_tokens is None or not least < num_draft_tokens <= largest + 1:
        span = str(least + 1) if least == largest else f"{least + 1} to {largest + 1}"
        raise error(
            UsageProblem,
            "tree-shape",
            f"{steps} steps of the {topk} likeliest do not make this many tokens",
            expected=f"--draft-tokens {span}: the token before the drafts counts",
            actual="none" if num_draft_tokens is None else str(num_draft_tokens),
            fix="say what the server is started with: --speculative-num-draft-tokens",
        )
    return TreeShape(steps, topk, num_draft_tokens - 1)


def at_depth(shape: TreeShape, steps: int) -> TreeShape:
    """The same tree with another depth: no more drafts than it can hold."""
    if shape.chain:
        return chain_of(steps)
    other = TreeShape(steps, shape.topk, shape.drafts)
    return replace(other, drafts=min(shape.drafts, other.largest))


def grow(chain: Chain, shape: TreeShape) -> Draft:
    """A tree after the last certain row of a head of one layer."""
    scores, tokens, parents = list[Tensor](), list[int](), list[int]()  # of every token that is scored
    lane_scores, places = torch.ones(1), [ROOT]  # of every lane: its score, and where its token stands among them
    hidden, features = chain.last.hidden[:, -1:], chain.last.features[:, -1:]
    for step in range(shape.steps):
        if step:
            row = chain.lanes(hidden, [tokens[place] for place in places], step)
            hidden, features = row.hidden, row.features
        probs, found = likelihoods(chain.head.logits(features)[0]).topk(shape.topk, dim=-1)
        offset = len(tokens)
        scored = (lane_scores[:, None] * probs.cpu()).flatten()
        scores.append(scored)
        tokens += chain.head.target_ids(found).flatten().tolist()
        parents += [place for place in places for _ in range(shape.topk)]
        lane_scores, best = scored.topk(shape.topk)
        hidden = hidden[:, (best // shape.topk).to(hidden.device)]
        places = [offset + int(index) for index in best]
    return _best(torch.cat(scores), tokens, parents, shape.drafts)


def likelihoods(logits: Tensor) -> Tensor:
    """`[..., V]` in float32; nothing is likely where a head says no number (damaged, or beyond float16)."""
    return torch.softmax(logits.float(), -1).nan_to_num(0)


def _best(scores: Tensor, tokens: list[int], parents: list[int], count: int) -> Draft:
    """The `count` best in the order in which they were made: a parent scores no less than its children and stands before
    them, so a stable order keeps it with them."""
    kept = scores.sort(descending=True, stable=True).indices[:count].sort().values.tolist()
    place = {number: i for i, number in enumerate(kept)} | {ROOT: ROOT}
    return Draft([tokens[number] for number in kept], None, tuple(place[parents[number]] for number in kept))
