#!/usr/bin/env python3
"""What does it cost to train a head beside its target? `bench_training.py` on SmolLM2-135M with a trained head.

One optimiser step of the whole target on random tokens (forward, loss, backward, AdamW), alone and followed by a step of the
head on the states that the forward pass left anyway (the isolated objective of ckpt_tools.tune). In turns, their order drawn
anew for each repeat; a ratio is formed within one repeat. slime reports 5% for one MTP layer of a 7B model on H200s.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from get_smollm2 import get_smollm2
from mimo_form import mimo_form
from torch.nn import functional

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.target import Target, load_target
from ckpt_tools.tune.student import Student

ASSETS = Path(__file__).resolve().parents[1] / "tests" / "assets"
ALONE = "target alone"


def loaded(kind: str, work: Path) -> tuple[Target, Head]:
    """The target, all of it trainable, and the head; an MTP head belongs to SmolLM2 in MiMo's form."""
    head = ASSETS / f"smollm2-{kind}"
    folder = get_smollm2(work / "smollm2")
    target = load_target(mimo_form(folder, head, work / "mimo") if kind == "mtp" else folder)
    built = build_head(open_draft(head), target).requires_grad_(True)
    target.model.requires_grad_(True)
    return target, built


class Steps:
    """Optimiser steps on `batch` x `length` random tokens."""

    def __init__(self, target: Target, head: Head, batch: int, length: int) -> None:
        self.target, self.head = target, head
        self.ids = torch.randint(target.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
        self.body = torch.optim.AdamW(target.model.parameters(), lr=1e-6)
        self.side = torch.optim.AdamW(head.parameters(), lr=1e-6)

    def train(self) -> torch.Tensor:
        """A step of the target; returns the features that the head is fed, `[batch, length, F]`."""
        boundaries = self.head.boundaries
        out = self.target.body(input_ids=self.ids, output_hidden_states=bool(boundaries), use_cache=False)
        logits = self.target.logits(out.last_hidden_state[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        self.body.step()
        self.body.zero_grad()
        states = [out.hidden_states[boundary] for boundary in boundaries] or [out.last_hidden_state]
        return torch.cat([state.detach() for state in states], dim=-1)

    def train_head(self, student: Student, features: torch.Tensor) -> None:
        generated = torch.ones_like(self.ids, dtype=torch.bool)
        student(self.ids, features, generated).loss.backward()
        self.side.step()
        self.side.zero_grad()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", choices=("mtp", "eagle3", "eagle"), default="mtp")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 3], help="draft steps that are trained")
    parser.add_argument("--repeats", type=int, default=7, help="one more warms up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target, head = loaded(options.head, Path(folder))
    steps = Steps(target, head, options.batch, options.length)
    ways: dict[str, Callable[[], object]] = {ALONE: steps.train}
    for number in options.steps:
        student = Student(head, number)
        ways[f"and {number} draft steps"] = lambda student=student: steps.train_head(student, steps.train())  # type: ignore[misc]
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(options.repeats + 1):
        for name in random.sample(list(ways), len(ways)):
            begun = time.perf_counter()
            ways[name]()
            if repeat:
                spent[name].append(time.perf_counter() - begun)
    print(f"{options.head}, {options.batch} x {options.length} tokens, {options.repeats} repeats")
    for name, seconds in spent.items():
        ratios = [mine / alone for mine, alone in zip(seconds, spent[ALONE], strict=True)]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:<20} {statistics.median(seconds):6.2f} s  x {statistics.median(ratios):.2f} ({span})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
