"""Decoding one prompt: by the target alone, and with a head."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from .chain import Chain
from .counters import Counters
from .draft import Choose, Draft, likeliest
from .head import Head
from .target import Run, Target
from .tree import TreeShape, chain_of, grow
from .verification import GREEDY, Sampling, distribution, draw, verifier


@dataclass(slots=True)
class Times:
    """Seconds. `draft` is spent in the head, `target` in the target's passes after the prompt, `loop` in all after the
    prompt; `prompt` is the prompt's pass, of the head as well."""

    draft: float = 0.0
    target: float = 0.0
    loop: float = 0.0
    prompt: float = 0.0

    def __iadd__(self, other: Times) -> Times:
        for name in ("draft", "target", "loop", "prompt"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(slots=True)
class Decoded:
    """`tokens` after the prompt; `accepted[i]` says whether token i was a draft; `rejected[i]` are the drafts that token i
    took the place of."""

    tokens: list[int]
    passes: int = 0
    times: Times = field(default_factory=Times)
    accepted: list[bool] = field(default_factory=list)
    rejected: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """At most `new` tokens; a text ends after one of `stop`."""

    new: int = 64
    stop: Collection[int] = ()


class Clock:
    """Wall time of a device: waits for a GPU before it looks."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def __call__(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def cut(tokens: list[int], limits: Limits) -> tuple[list[int], bool]:
    """(the text up to its end, whether it has ended)."""
    for number, token in enumerate(tokens[: limits.new]):
        if token in limits.stop:
            return tokens[: number + 1], True
    return tokens[: limits.new], len(tokens) >= limits.new


def plain(target: Target, prompt: Sequence[int], limits: Limits, sampling: Sampling = GREEDY) -> Decoded:
    """The target alone, one token per pass."""
    return finished(plain_steps(target, prompt, limits, sampling))


def speculative(
    target: Target,
    head: Head,
    prompt: Sequence[int],
    limits: Limits,
    counters: Counters,
    sampling: Sampling = GREEDY,
    shape: TreeShape | None = None,
) -> Decoded:
    """Draft a chain of `counters.steps` tokens, or a tree of `shape`; verify it in one pass of the target, go on after the last
    token that it keeps."""
    return finished(speculative_steps(target, head, prompt, limits, counters, sampling, shape))


def finished(steps: Iterator[Decoded]) -> Decoded:
    """What the last step left; decoders yield the same object after every pass, so that several can run in turns."""
    return deque(steps, maxlen=1)[0]


@torch.inference_mode()
def plain_steps(
    target: Target, prompt: Sequence[int], limits: Limits, sampling: Sampling = GREEDY
) -> Iterator[Decoded]:
    generator = torch.Generator().manual_seed(sampling.seed)
    clock, run = Clock(target.device), Run(target)
    begun = clock()
    out = Decoded([_own(target, run.feed(prompt)[0], sampling, generator)], accepted=[False])
    out.times.prompt = clock() - begun
    yield out
    while not cut(out.tokens, limits)[1]:
        started = clock()
        out.tokens.append(_own(target, run.feed(out.tokens[-1:])[0], sampling, generator))
        out.accepted.append(False)
        out.passes += 1
        out.times.target += clock() - started
        out.times.loop = out.times.target
        yield out


def _own(target: Target, hidden: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The target's next token."""
    logits = target.logits(hidden[:, -1])[0]
    return int(logits.argmax(-1)) if sampling.greedy else draw(distribution(logits, sampling), generator)


@torch.inference_mode()
def speculative_steps(
    target: Target,
    head: Head,
    prompt: Sequence[int],
    limits: Limits,
    counters: Counters,
    sampling: Sampling = GREEDY,
    shape: TreeShape | None = None,
) -> Iterator[Decoded]:
    shape = shape or chain_of(counters.steps)
    generator = torch.Generator().manual_seed(sampling.seed)
    verify, choose = verifier(sampling, generator), chooser(head, sampling, generator, target.vocab_size)
    clock, run, chain = Clock(target.device), Run(target, head.boundaries), Chain(head)
    begun = clock()
    hidden, features = run.feed(prompt)
    out = Decoded([_own(target, hidden, sampling, generator)], accepted=[False])
    chain.extend(features, [*prompt[1:], out.tokens[0]])
    out.times.prompt = clock() - begun
    ended = cut(out.tokens, limits)[1]
    yield out
    while not ended:
        started = clock()
        draft = chain.draft(shape.steps, choose) if shape.chain else grow(chain, shape)
        drafted = clock()
        hidden, features = run.feed_draft(out.tokens[-1], draft)
        logits = target.logits(hidden)[0]
        verified = clock()
        path, emitted = verify(draft, logits)
        _take(out, draft, path, emitted)
        counters.count(len(path))
        run.keep(draft, path)
        ended = cut(out.tokens, limits)[1]
        settled = clock()
        if not ended:
            chain.extend(features[:, [0, *(number + 1 for number in path)]], emitted)
        done = clock()
        out.times.draft += drafted - started + done - settled
        out.times.target += verified - drafted
        out.times.loop += done - started
        if ended:
            out.tokens = cut(out.tokens, limits)[0]
            out.accepted = out.accepted[: len(out.tokens)]
            counters.tokens += len(out.tokens)
        yield out


def _take(out: Decoded, draft: Draft, path: list[int], emitted: list[int]) -> None:
    if rejected := draft.rejected(path):
        out.rejected[len(out.tokens) + len(path)] = rejected
    out.tokens += emitted
    out.accepted += [True] * len(path) + [False]
    out.passes += 1


def chooser(head: Head, sampling: Sampling, generator: torch.Generator, vocab: int) -> Choose:
    """How a draft is chosen: the likeliest, or for exact rejection one drawn from q, which it hands on."""
    if sampling.greedy or sampling.method != "exact":
        return likeliest(head)

    def choose(logits: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        q = distribution(logits, sampling).to(generator.device)
        whole = torch.zeros(vocab)
        whole[head.target_ids(torch.arange(len(q), device=logits.device)).to(generator.device)] = q
        return draw(whole, generator), whole

    return choose
