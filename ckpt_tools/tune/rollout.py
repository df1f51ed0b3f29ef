"""The target's own samples, drafted by the head that learns from them; what the head does for a target, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..speculate.counters import Counters
from ..speculate.decode import Limits, Times, plain, speculative
from ..speculate.head import Head
from ..speculate.target import Run, Target
from ..speculate.verification import Sampling
from .samples import Sample


@dataclass(slots=True)
class Acceptance:
    """What a head did on prompts. `accept_length` counts tokens per verification, the target's own included;
    `by_position[i]` is the share of verifications that accepted at least i + 1 drafts. Speed is of this machine: tokens per
    second after the prompts' passes, prompts one at a time."""

    accept_length: float
    accept_rate: float
    by_position: list[float]
    verifications: int
    tokens: int
    tokens_per_second: float

    @classmethod
    def of(cls, counters: Counters, times: Times, prompts: int) -> Acceptance:
        looped = counters.tokens - prompts  # the first token of a text comes out of the prompt's pass
        return cls(
            counters.accept_length,
            counters.accept_rate,
            counters.by_position,
            counters.verifications,
            counters.tokens,
            looped / times.loop if times.loop else 0.0,
        )

    @property
    def accepted(self) -> float:
        """Accepted drafts per verification."""
        return self.accept_length - 1


@dataclass(slots=True)
class Rollout:
    """Samples and how they came about."""

    counters: Counters
    samples: list[Sample] = field(default_factory=list)
    times: Times = field(default_factory=Times)

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance.of(self.counters, self.times, len(self.samples))


def stops(target: Target) -> list[int]:
    """The tokens that end a text, by the model's generation config."""
    found = target.model.generation_config.eos_token_id
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def roll_out(
    target: Target, head: Head, prompts: Sequence[Sequence[int]], limits: Limits, steps: int, sampling: Sampling
) -> Rollout:
    """Continue every prompt with `steps` drafts per verification; prompt i is sampled with seed `sampling.seed` + i."""
    out = Rollout(Counters(steps))
    for number, prompt in enumerate(prompts):
        seeded = replace(sampling, seed=sampling.seed + number)
        decoded = speculative(target, head, prompt, limits, out.counters, seeded)
        out.samples.append(Sample((*prompt, *decoded.tokens), len(prompt)))
        out.times += decoded.times
    return out


def alone(target: Target, prompts: Sequence[Sequence[int]], limits: Limits) -> tuple[list[Sample], float]:
    """The target without a head, greedily: its samples, and its tokens per second."""
    texts, times = [], Times()
    for prompt in prompts:
        decoded = plain(target, prompt, limits)
        texts.append(Sample((*prompt, *decoded.tokens), len(prompt)))
        times += decoded.times
    looped = sum(text.generated - 1 for text in texts)
    return texts, looped / times.loop if times.loop else 0.0


def features(target: Target, boundaries: tuple[int, ...], sample: Sample) -> Tensor:
    """[T, F]: what the target gives a head for every token of a sample; without history, so that nothing reaches it."""
    with torch.inference_mode():
        found = Run(target, boundaries).feed(sample.ids)[1][0]
    return found.clone()  # a tensor of inference mode cannot be saved for a backward pass
