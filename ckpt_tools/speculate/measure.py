"""Where the time goes, what it predicts, and what was measured.

slime's model of speculative decoding: with k draft steps, A accepted drafts, t_d per drafted token, t_v for the
verification, t_o for everything else and t_t per plain pass, the speed-up is (E[A] + 1) t_t / (k t_d + t_v + t_o).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..drafts.speedup import expected_accepted, speed_up
from .counters import Counters
from .decode import Clock, Decoded, Times
from .draft import ROOT, Draft
from .results import Depth, Timing
from .target import Run, Target
from .tree import TreeShape

ROUNDS = 6  # passes of every width that are timed per prompt; one before them, which warms up, is left out
_ENDED = object()


@dataclass(slots=True)
class Tally:
    """Sums over the prompts that were timed; `times`, `counters` and `tokens` by number of draft steps, `verify` (seconds of
    calibration) by tokens per pass."""

    plain: Times = field(default_factory=Times)
    plain_tokens: int = 0
    plain_passes: int = 0
    times: dict[int, Times] = field(default_factory=dict)
    counters: dict[int, Counters] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    verify: dict[int, float] = field(default_factory=dict)

    def add_plain(self, run: Decoded) -> None:
        self.plain += run.times
        self.plain_tokens += len(run.tokens) - 1
        self.plain_passes += run.passes

    def add(self, steps: int, run: Decoded) -> None:
        self.times.setdefault(steps, Times()).__iadd__(run.times)
        self.tokens[steps] = self.tokens.get(steps, 0) + len(run.tokens) - 1


@torch.inference_mode()
def calibration(
    target: Target, context: Sequence[int], drafts: Sequence[Draft], seconds: dict[int, float]
) -> Iterator[None]:
    """Passes, output layer included, over a token and each of `drafts` after `context`: adds the seconds of one of each at a
    time, by tokens per pass."""
    clock, run = Clock(target.device), Run(target)
    run.feed(context)
    for number in range(ROUNDS + 1):
        for draft in drafts:
            width, begun = len(draft.tokens) + 1, clock()
            hidden, _ = run.feed_draft(context[0], draft)
            target.logits(hidden)[0].argmax(-1).tolist()
            seconds[width] = seconds.get(width, 0.0) + ((clock() - begun) if number else 0.0)
            run.roll_back(len(context))
        yield


class Watched:
    """A decoder whose last state is kept."""

    def __init__(self, steps: Iterator[Decoded]) -> None:
        self._steps = steps
        self.last = next(steps)

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Decoded:
        self.last = next(self._steps)
        return self.last


def in_turns(*runs: Iterator[Any]) -> None:
    """One step of each until all have ended, so that whatever else the machine does falls on all alike."""
    left = list(runs)
    while left:
        left = [run for run in left if next(run, _ENDED) is not _ENDED]


def dummy(shape: TreeShape, token: int) -> Draft:
    """A draft of this size, to be timed: a tree's all follow the root, which costs as much as any other tree."""
    return Draft([token] * shape.drafts, None, () if shape.chain else (ROOT,) * shape.drafts)


def timing(tally: Tally, chain: bool = True) -> Timing | None:
    """Costs, predictions and measurements. Acceptance by position is that of the deepest run, of which every shallower chain
    is a prefix (of a tree, its own run's); `verify` comes from the calibration, scaled to the plain passes of the same run.
    None where no text went beyond its first token.
    """
    if not tally.times or not all(times.loop for times in (tally.plain, *tally.times.values())):
        return None
    deepest = max(tally.times)
    plain_pass = tally.plain.loop / max(tally.plain_passes, 1)
    scale = plain_pass / tally.verify[1]
    verify = {width: value * scale for width, value in tally.verify.items()}
    drafted = sum(steps * tally.counters[steps].verifications for steps in tally.times)
    draft = sum(times.draft for times in tally.times.values()) / max(drafted, 1)
    verifications = sum(tally.counters[steps].verifications for steps in tally.times)
    other = sum(times.loop - times.draft - times.target for times in tally.times.values()) / max(verifications, 1)
    plain_rate = tally.plain_tokens / tally.plain.loop
    depths, passes = [], [verify[1]]
    for steps in sorted(tally.times):
        counters = tally.counters[steps]
        rate = tally.tokens[steps] / tally.times[steps].loop
        accepted = expected_accepted((tally.counters[deepest] if chain else counters).by_position, steps)
        passes.append(verify[counters.drafts + 1])
        predicted = speed_up(accepted, steps, draft, passes[-1], other, plain_pass)
        measured = rate / plain_rate
        depths.append(Depth(steps, counters.accept_length, rate, predicted, measured, predicted / measured - 1))
    best = max(depths, key=lambda depth: depth.measured)
    return Timing(
        draft=draft * 1e3,
        verify=[seconds * 1e3 for seconds in passes],
        target=plain_pass * 1e3,
        overhead=other * 1e3,
        plain_tokens_per_second=plain_rate,
        depths=depths,
        best_steps=best.steps if best.measured > 1 else 0,
    )
