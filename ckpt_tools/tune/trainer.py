"""The loop: the target generates, drafted by the head, and the head learns from what was generated.

torch's AdamW, transformers' schedule, accelerate's devices, processes, precision and checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import CkptError, error
from ..speculate.counters import Counters
from ..speculate.decode import Clock, Limits
from ..speculate.head import Head
from ..speculate.results import Acceptance, acceptance
from ..speculate.target import Target
from ..speculate.verification import Sampling
from .rollout import Rollout, features, roll_out
from .samples import Sample
from .settings import Settings
from .state import State, read_state, write_state
from .student import Losses, Student

Prompts = Sequence[Sequence[int]]


@dataclass(slots=True)
class Round:
    """One round, over all processes. `accept_length` is that of the round's generation, with the head as it was before the
    round's updates (None where samples were given); `seconds` are the first process's, of which `learning` in
    the updates, the target's features included; `losses` are mean cross-entropies (nats) of every step of the chain,
    `right` how often its likeliest draft was the target's token, given that those before were."""

    number: int
    updates: int
    tokens: int
    seconds: float
    learning: float
    accept_length: float | None
    losses: list[float]
    right: list[float]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where samples come from: `prompts` for the target to continue until one of `stop`, or `samples` that exist."""

    prompts: Prompts = ()
    stop: frozenset[int] = frozenset()
    samples: Sequence[Sample] = ()

    def digest(self) -> str:
        """SHA-256 of everything that is learned from."""
        samples = [(sample.ids, sample.prompt) for sample in self.samples]
        everything = [list(map(list, self.prompts)), sorted(self.stop), samples]
        return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


@dataclass(eq=False)
class Trainer:
    """`drafter` is the head in the target's dtype, as it is served: it generates and is measured. `student` holds the same
    head in fp32, which learns."""

    accelerator: Any
    target: Target
    drafter: Head
    settings: Settings
    source: Source
    student: Student
    model: Any = field(init=False)
    optimizer: Any = field(init=False)
    schedule: Any = field(init=False)
    kept: list[list[Sample]] = field(default_factory=list)
    history: list[Round] = field(default_factory=list)
    seen: dict[Sample, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from transformers import get_constant_schedule_with_warmup

        s = self.settings
        parameters = [p for p in self.student.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=s.learning_rate, weight_decay=s.weight_decay)
        schedule = get_constant_schedule_with_warmup(optimizer, s.warmup)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(self.student, optimizer, schedule)

    @property
    def head(self) -> Head:
        """The head that learns, in fp32."""
        return self.student.head

    def run(self, state: State | None, said: Callable[[Round], None]) -> None:
        """All rounds that are not done yet; `said` hears of each. `state` is where checkpoints go, the last round's too."""
        for number in range(len(self.history), self.settings.rounds):
            done = self._round(number)
            self.history.append(done)
            said(done)
            every = self.settings.save_every
            if state is not None and every and ((number + 1) % every == 0 or number + 1 == self.settings.rounds):
                self.save(state)

    def _round(self, number: int) -> Round:
        clock = Clock(self.target.device)
        started = clock()
        rolled = self._generate(number)
        generated = clock()
        found = [self._update(batch) for batch in self._batches(number)]
        totals, counts, right = (torch.stack([losses[k] for losses in found]).sum(0) for k in (1, 2, 3))
        totals, counts, right = (self._everywhere(x) for x in (totals, counts, right))
        counters = self._merged(rolled.counters) if rolled else None
        trained = counts.clamp(min=1)
        return Round(
            number=number + 1,
            updates=len(found),
            tokens=counters.tokens if counters else 0,
            seconds=clock() - started,
            learning=clock() - generated,
            accept_length=counters.accept_length if counters and counters.verifications else None,
            losses=(totals / trained).tolist(),
            right=(right / trained).tolist(),
        )

    def _generate(self, number: int) -> Rollout | None:
        """This process's samples of a round; what is kept longer than `replay` rounds is forgotten."""
        if not self.source.prompts:
            self.kept = [list(self.source.samples)]
            return None
        self.publish()
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        start = (number * size + rank) * self.settings.prompts
        every = len(self.source.prompts)
        prompts = [
            self.source.prompts[nth(i, every, self.settings.seed)] for i in range(start, start + self.settings.prompts)
        ]
        limits = Limits(self.settings.new_tokens, self.source.stop)
        sampling = Sampling(self.settings.temperature, seed=self.settings.seed * 1_000_003 + start)
        rolled = roll_out(self.target, self.drafter, prompts, limits, self.student.steps, sampling)
        self.kept = [*self.kept, rolled.samples][-self.settings.replay :]
        return rolled

    def publish(self) -> None:
        """Hand what was learned to the drafter."""
        self.drafter.load_state_dict(self.head.state_dict())

    def _batches(self, number: int) -> list[list[Sample]]:
        """The batches of a round: a function of seed, round and process alone, so that a resumed run draws the same."""
        s = self.settings
        draw = random.Random(f"{s.seed} {number} {self.accelerator.process_index}")
        samples = [sample for samples in self.kept for sample in samples]
        current = set(samples)
        self.seen = {sample: rows for sample, rows in self.seen.items() if sample in current}
        order: list[Sample] = []
        while len(order) < s.updates * s.batch:
            order += draw.sample(samples, len(samples))
        return [order[i * s.batch : (i + 1) * s.batch] for i in range(s.updates)]

    def _update(self, batch: Sequence[Sample]) -> Losses:
        """One optimiser step."""
        losses: Losses = self.model(*self._rows(batch))
        if not bool(losses.loss.isfinite()):
            raise error(
                CkptError,
                "loss-not-finite",
                "the loss is not a number",
                expected="a finite loss",
                actual=str(float(losses.loss.detach())),
                fix="a lower --learning-rate, or look at the head: `ckpt-tools verify-draft`",
            )
        self.accelerator.backward(losses.loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return losses

    def _rows(self, batch: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, features and what was generated, padded to the longest sample."""
        rows = [self._features(sample) for sample in batch]
        length, device = max(map(len, rows)), self.target.device
        ids = torch.zeros(len(batch), length, dtype=torch.long, device=device)
        generated = torch.zeros(len(batch), length, dtype=torch.bool, device=device)
        for i, sample in enumerate(batch):
            ids[i, : len(sample.ids)] = torch.tensor(sample.ids, device=device)
            generated[i, sample.prompt : len(sample.ids)] = True
        return ids, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), generated

    def _features(self, sample: Sample) -> Tensor:
        """The target's features of a sample, in fp32. Those of fresh samples are kept: the target stands still."""
        if sample in self.seen:
            return self.seen[sample]
        rows = features(self.target, self.head.boundaries, sample).float()
        if self.source.prompts:
            self.seen[sample] = rows
        return rows

    def _everywhere(self, x: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(x, reduction="sum")
        return summed

    def _merged(self, counters: Counters) -> Counters:
        """The counters of all processes as one."""
        numbers = [counters.verifications, counters.accepted, counters.proposed, counters.tokens, *counters.histogram]
        summed = self._everywhere(torch.tensor(numbers, device=self.target.device)).tolist()
        return Counters(counters.steps, summed[0], summed[1], summed[2], summed[3], summed[4:])

    def measure(self, prompts: Prompts) -> Acceptance | None:
        """What the head, as it is now, does on prompts, decoded greedily; every process does a part of them."""
        if not prompts:
            return None
        self.publish()
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        limits = Limits(self.settings.new_tokens, self.source.stop)
        rolled = roll_out(self.target, self.drafter, prompts[rank::size], limits, self.student.steps)
        return acceptance(self._merged(rolled.counters))

    def save(self, state: State) -> None:
        write_state(state, self.accelerator, self.kept, self.history)

    def resume(self, state: State) -> None:
        """Go on from the last checkpoint; raises CkptError if there is none or it is of another run."""
        self.kept, self.history = read_state(state, self.accelerator, Round)


def nth(position: int, count: int, seed: int) -> int:
    """Entry `position` of an endless row of shuffled passes over `count` things."""
    order = list(range(count))
    random.Random(f"{seed} {position // count}").shuffle(order)
    return order[position % count]
