"""Sampling with verification keeps the target's distribution, shown statistically; verifiers that do not are told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.draft import ROOT, Draft
from ckpt_tools.speculate.target import Run, Target, load_target
from ckpt_tools.speculate.verification import Sampling, Verified, distribution, draw, exact, greedy, target_only

from . import worlds
from .conftest import Clockwork

V, STEPS, LENGTH, RUNS = 3, 2, 3, 3000
NEAR, FAR = 0.05, 0.1  # total variation: what 3000 samples of 27 texts leave to chance, and what no chance explains
Verifier = Callable[[Draft, Tensor, torch.Generator], Verified]

Decoder = Callable[[Verifier, torch.Generator, bool], tuple[int, ...]]


def table(seed: int) -> dict[tuple[int, ...], Tensor]:
    """A distribution over V tokens after every context shorter than LENGTH."""
    generator = torch.Generator().manual_seed(seed)
    contexts = [c for n in range(LENGTH + STEPS + 1) for c in product(range(V), repeat=n)]
    return {context: torch.softmax(2 * torch.randn(V, generator=generator), 0) for context in contexts}


P, Q = table(1), table(2)


def texts(p: dict[tuple[int, ...], Tensor]) -> dict[tuple[int, ...], float]:
    """The exact probability of every text of LENGTH tokens."""
    return {
        text: float(torch.stack([p[text[:n]][text[n]] for n in range(LENGTH)]).prod())
        for text in product(range(V), repeat=LENGTH)
    }


def decode(verify: Verifier, generator: torch.Generator, drawn: bool) -> tuple[int, ...]:
    """A text by drafting from Q (or taking its likeliest token) and verifying against P."""
    text: list[int] = []
    while len(text) < LENGTH:
        drafted: list[int] = []
        for _ in range(STEPS):
            q = Q[(*text, *drafted)]
            drafted.append(draw(q, generator) if drawn else int(q.argmax()))
        contexts = [(*text, *drafted[:n]) for n in range(STEPS + 1)]
        draft = Draft(drafted, torch.stack([Q[context] for context in contexts[:-1]]))
        text += verify(draft, torch.stack([P[context] for context in contexts]), generator)[1]
    return tuple(text[:LENGTH])


def decode_branching(verify: Verifier, generator: torch.Generator, drawn: bool) -> tuple[int, ...]:
    """The same with trees: the two likeliest tokens of Q, and the two likeliest after the first of them."""
    text: list[int] = []
    while len(text) < LENGTH:
        first = Q[tuple(text)].topk(2).indices.tolist()
        second = Q[(*text, first[0])].topk(2).indices.tolist()
        draft = Draft([*first, *second], None, (ROOT, ROOT, 0, 0))
        ways = [(), *((token,) for token in first), *((first[0], token) for token in second)]
        text += verify(draft, torch.stack([P[(*text, *way)] for way in ways]), generator)[1]
    return tuple(text[:LENGTH])


def variation(verify: Verifier, drawn: bool, decode: Decoder = decode) -> float:
    """Total variation between what a verifier emits and P."""
    generator = torch.Generator().manual_seed(7)
    seen = Counter(decode(verify, generator, drawn) for _ in range(RUNS))
    return sum(abs(seen[text] / RUNS - share) for text, share in texts(P).items()) / 2


def always_the_likeliest(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    return greedy(draft, p.log())


def without_the_residual(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """Rejects rightly, and then draws from p instead of from what p has more than q."""
    path, emitted = exact(draft, p, generator)
    return path, [*emitted[:-1], draw(p[len(path)], generator)]


def without_marking(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """Target-only, but the rejected draft may be drawn again."""
    path, emitted = target_only(draft, p, generator)
    return path, [*emitted[:-1], draw(p[(path[-1] if path else ROOT) + 1], generator)]


def test_the_two_models_differ() -> None:
    assert sum(abs(texts(P)[text] - share) for text, share in texts(Q).items()) / 2 > 0.3


def test_exact_rejection_keeps_the_distribution() -> None:
    assert variation(exact, drawn=True) < NEAR


def test_target_only_keeps_the_distribution_whatever_is_drafted() -> None:
    assert variation(target_only, drawn=False) < NEAR


@pytest.mark.parametrize(
    ("broken", "drawn"), [(always_the_likeliest, True), (without_the_residual, True), (without_marking, False)]
)
def test_a_broken_verifier_is_far_off(broken: Verifier, drawn: bool) -> None:
    assert variation(broken, drawn) > FAR


def only_the_first_sibling(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """Asks the first of several drafts at one place, takes p without it, and forgets that the others were up as well."""
    chain = [i for i in range(len(draft.tokens)) if i == draft.children(draft.parent(i))[0]]
    rows = [0, *(i + 1 for i in chain)]
    return target_only(Draft([draft.tokens[i] for i in chain]), p[rows], generator)


def each_with_a_coin_of_its_own(draft: Draft, p: Tensor, generator: torch.Generator) -> Verified:
    """As if each brother were asked with p again, not with what is left of it."""
    path: list[int] = []
    while True:
        last = path[-1] if path else ROOT
        rest = p[last + 1].clone()
        for number in draft.children(last):
            if float(torch.rand((), generator=generator)) < float(p[last + 1, draft.tokens[number]]):
                path.append(number)
                break
            rest[draft.tokens[number]] = 0
        else:
            return path, [*(draft.tokens[number] for number in path), draw(rest, generator)]


def test_target_only_keeps_the_distribution_of_trees() -> None:
    """So does a verifier that leaves brothers out; one that throws a fresh coin for each does not."""
    assert variation(target_only, False, decode_branching) < NEAR
    assert variation(only_the_first_sibling, False, decode_branching) < NEAR
    for broken in (always_the_likeliest, without_marking, each_with_a_coin_of_its_own):
        assert variation(broken, False, decode_branching) > FAR


@pytest.mark.parametrize("parents", [(), (ROOT, ROOT)])
def test_all_of_the_mass_lies_on_drafts(parents: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may leave the sum below the coin: then it is one of the drafts, not a token out of nothing."""
    almost = 1 - 2**-24
    p = torch.tensor([[0.5, almost - 0.5, 0.0]] * 3) if parents else torch.tensor([[almost, 0.0, 0.0]] * 3)
    monkeypatch.setattr(torch, "rand", lambda count, generator: torch.full((count,), almost))
    draft = Draft([0, 1], None, parents) if parents else Draft([0, 0])
    path, emitted = target_only(draft, p, torch.Generator())
    assert path == ([1] if parents else [0, 1])
    assert emitted[: len(path)] == [draft.tokens[number] for number in path]


def test_drafts_from_the_target_itself_are_never_rejected() -> None:
    """Z = 0: there is no residual to draw from."""
    p = torch.stack([P[()], P[(0,)], P[(0, 1)]])
    generator = torch.Generator().manual_seed(0)
    assert all(exact(Draft([0, 1], p[:2]), p, generator)[0] == [0, 1] for _ in range(200))


def test_top_k_and_top_p_cut_and_renormalise() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    cut = distribution(logits, Sampling(1.0, top_k=2))
    assert cut.tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert distribution(logits, Sampling(1.0, top_p=0.65)).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert distribution(logits, Sampling(0.5)).tolist() == pytest.approx([16 / 30, 9 / 30, 4 / 30, 1 / 30])


SAMPLED, PROMPT, KEPT = 300, [5, 3], 2


@pytest.mark.parametrize("method", ["exact", "target-only"])
def test_the_whole_loop_samples_from_the_target(method: str, clockwork: Clockwork, tmp_path: Path) -> None:
    """A head whose drafts are sometimes right, top-k 2 at a high temperature: 8 texts, all of them likely."""
    folder = clockwork("llama", vocab=12, layers=1)
    target = load_target(folder)
    head = build_head(open_draft(worlds.eagle(tmp_path / "head", folder, noise=2.5)), target)
    counters, seen = Counters(2), Counter[tuple[int, ...]]()
    for seed in range(SAMPLED):
        sampling = Sampling(30.0, top_k=KEPT, method=method, seed=seed)
        seen[tuple(speculative(target, head, PROMPT, Limits(3), counters, sampling).tokens)] += 1
    share = exact_shares(target, Sampling(30.0, top_k=KEPT))
    assert set(seen) <= set(share)
    assert 0 < counters.accepted < counters.proposed
    assert sum(abs(seen[text] / SAMPLED - p) for text, p in share.items()) / 2 < 0.12


def exact_shares(target: Target, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Every text of three tokens that the target can say, by its own probabilities without any cache."""
    shares: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        grown = {}
        for text, share in shares.items():
            hidden, _ = Run(target).feed([*PROMPT, *text])
            probs = distribution(target.logits(hidden[0, -1]), sampling)
            grown |= {(*text, int(t)): share * float(probs[t]) for t in probs.nonzero()[:, 0]}
        shares = grown
    return shares


def test_a_seed_gives_one_text(clockwork: Clockwork) -> None:
    target = load_target(clockwork("llama"))
    texts = [plain(target, PROMPT, Limits(8), Sampling(50.0, seed=seed)).tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
