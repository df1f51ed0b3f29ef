"""Which drafts the target keeps.

Greedy: a draft is kept while it is the target's own likeliest token. Exact rejection (Leviathan et al. 2023; SGLang
`--speculative-use-rejection-sampling`): a draft drawn from q is kept with probability min(1, p/q); at the first rejection
a token of [p - q]+ / Z takes its place; it is defined for chains. Target-only (SGLang's default, thresholds 1): a draft d is
kept with probability p(d), whatever q; of several at one place, the coin falls on one of them or on none, and then a token of p
without them is taken. After the last draft, one of p. All three leave the target's distribution as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .draft import ROOT, Draft

# (draft, logits of the target after its last token and every draft [k+1, V]) -> (accepted drafts by number, tokens to emit:
# those and one more)
Verified = tuple[list[int], list[int]]
Verify = Callable[[Draft, Tensor], Verified]


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave everything. `method` is "exact" or "target-only"."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    method: str = "exact"
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling()


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """`[..., V]` in float32: softmax at the temperature, then top-k, then top-p, renormalised (SGLang's order)."""
    probs = torch.softmax(logits.float() / sampling.temperature, dim=-1)
    if 0 < sampling.top_k < probs.shape[-1]:
        least = probs.topk(sampling.top_k, dim=-1).values[..., -1:]
        probs = probs.masked_fill(probs < least, 0)
    if sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        share = sampling.top_p * ordered.sum(-1, keepdim=True)
        kept = torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(before >= share, 0))
        probs = kept
    return probs / probs.sum(-1, keepdim=True)


def greedy(draft: Draft, logits: Tensor) -> Verified:
    """Drafts while one is the target's argmax, then the target's own."""
    wanted, path = logits.argmax(-1).tolist(), list[int]()
    emitted = wanted[:1]
    while (kept := _among(draft, path, emitted[-1])) is not None:
        path.append(kept)
        emitted.append(wanted[kept + 1])
    return path, emitted


def _among(draft: Draft, path: list[int], token: int) -> int | None:
    """The draft after `path` that is this token."""
    candidates = draft.children(path[-1] if path else ROOT)
    return next((number for number in candidates if draft.tokens[number] == token), None)


def exact(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """Rejection sampling of a chain against the distributions `draft.probs`; `p [k+1, V]` are the target's."""
    assert draft.probs is not None and not draft.parents, "exact rejection needs a chain and what it was drawn from"
    coins = torch.rand(len(draft.tokens), generator=generator)
    for step, token in enumerate(draft.tokens):
        q = draft.probs[step]
        if float(coins[step]) * float(q[token]) >= float(p[step, token]):
            residual = (p[step] - q).clamp(min=0)
            return list(range(step)), [
                *draft.tokens[:step],
                draw(residual if bool(residual.any()) else p[step], generator),
            ]
    return list(range(len(draft.tokens))), [*draft.tokens, draw(p[-1], generator)]


def target_only(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """The target's probabilities alone decide; `draft.probs` is not looked at."""
    coins, path = torch.rand(len(draft.tokens), generator=generator).tolist(), list[int]()
    while True:
        last = path[-1] if path else ROOT
        rest, candidates = p[last + 1].clone(), draft.children(last)
        kept = _hit(rest, [draft.tokens[number] for number in candidates], coins[len(path)]) if candidates else None
        if kept is None:
            return path, [*(draft.tokens[number] for number in path), draw(rest, generator)]
        path.append(candidates[kept])


def _hit(rest: Tensor, tokens: list[int], coin: float) -> int | None:
    """Which of the tokens `coin` falls on, if they lie side by side with their probabilities `rest`; those before it, or all
    where it is none, are taken out of `rest`. All of the mass may be theirs: then it is one of them, whatever rounding says.
    """
    reached, last = 0.0, None
    for place, token in enumerate(tokens):
        share = float(rest[token])
        reached += share
        if coin < reached:
            return place
        last = place if share > 0 else last
        rest[token] = 0
    return None if bool(rest.any()) else last


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """A token by weights `[V]` that need not sum to 1."""
    return int(torch.multinomial(weights.to(generator.device), 1, generator=generator))


SAMPLERS = {"exact": exact, "target-only": target_only}


def verifier(sampling: Sampling, generator: torch.Generator) -> Verify:
    if sampling.greedy:
        return greedy
    chosen = SAMPLERS[sampling.method]

    def verify(draft: Draft, logits: Tensor) -> Verified:
        return chosen(draft, distribution(logits, sampling).to(generator.device), generator)

    return verify
