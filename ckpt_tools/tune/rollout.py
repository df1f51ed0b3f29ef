"""The target's own samples, drafted by the head that learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..speculate.counters import Counters
from ..speculate.decode import Limits, speculative
from ..speculate.head import Head
from ..speculate.target import Run, Target
from ..speculate.verification import GREEDY, Sampling
from .samples import Sample


@dataclass(slots=True)
class Rollout:
    """Samples, and what was accepted while they were made."""

    counters: Counters
    samples: list[Sample] = field(default_factory=list)


def roll_out(
    target: Target,
    head: Head,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    steps: int,
    sampling: Sampling = GREEDY,
) -> Rollout:
    """Continue every prompt with `steps` drafts per verification; prompt i is sampled with seed `sampling.seed` + i."""
    out = Rollout(Counters(steps))
    for number, prompt in enumerate(prompts):
        seeded = replace(sampling, seed=sampling.seed + number)
        decoded = speculative(target, head, prompt, limits, out.counters, seeded)
        out.samples.append(Sample((*prompt, *decoded.tokens), len(prompt)))
    return out


def features(target: Target, boundaries: tuple[int, ...], sample: Sample) -> Tensor:
    """[T, F]: what the target gives a head for every token of a sample; without history, so that nothing reaches it."""
    with torch.inference_mode():
        found = Run(target, boundaries).feed(sample.ids)[1][0]
    return found.clone()  # a tensor of inference mode cannot be saved for a backward pass
