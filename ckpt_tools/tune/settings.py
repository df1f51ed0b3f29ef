"""How a head is tuned."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """In one round every process continues `prompts` prompts with at most `new_tokens` tokens (nothing, if samples are given),
    sampled at `temperature` (0 is greedy), then takes `updates` optimiser steps on batches of `batch` samples drawn from
    those of the last `replay` rounds.

    `steps` are the drafts per verification and the steps of a chain that are trained, step s with weight `decay ** s` (0.8 is
    EAGLE-3's). `warmup` counts optimiser steps, `clip` is the largest norm of a gradient. `save_every` counts rounds; 0 saves
    nothing. `seed` fixes prompts, samples and batches.
    """

    rounds: int = 20
    prompts: int = 8
    new_tokens: int = 128
    updates: int = 16
    batch: int = 4
    replay: int = 4
    steps: int = 3
    decay: float = 0.8
    learning_rate: float = 1e-4
    warmup: int = 8
    weight_decay: float = 0.0
    clip: float = 1.0
    temperature: float = 1.0
    save_every: int = 5
    seed: int = 0

    def fingerprint(self) -> dict[str, float]:
        """What must not change when a run is resumed; how long it lasts and how often it is saved may."""
        return {name: value for name, value in asdict(self).items() if name not in ("rounds", "save_every")}
