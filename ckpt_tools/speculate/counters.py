"""What is counted, and the one definition of every figure that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Verifications and what they accepted. `histogram[a]` counts verifications that accepted a drafts.

    At most `steps` are accepted of the `drafts` that each verification is given: as many for a chain, which 0 is made.
    `tokens` are those emitted, one per prompt before any verification included. As in SGLang, a verification that runs
    past the end of a text counts whole.
    """

    steps: int
    verifications: int = 0
    accepted: int = 0
    proposed: int = 0
    tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    drafts: int = 0

    def __post_init__(self) -> None:
        self.histogram = self.histogram or [0] * (self.steps + 1)
        self.drafts = self.drafts or self.steps

    def count(self, accepted: int) -> None:
        self.verifications += 1
        self.accepted += accepted
        self.proposed += self.drafts
        self.histogram[accepted] += 1

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafts per verification, the target's own token not counted: 0 to `steps`."""
        return self.accepted / max(self.verifications, 1)

    @property
    def accept_length(self) -> float:
        """Tokens per verification, the target's own (bonus) token included: 1 to `steps` + 1."""
        return self.accepted_per_step + 1

    @property
    def accept_rate(self) -> float:
        """Accepted of proposed drafts: 0 to 1."""
        return self.accepted / max(self.proposed, 1)

    @property
    def by_position(self) -> list[float]:
        """Share of verifications that accepted at least 1, 2, ... `steps` drafts."""
        return [sum(self.histogram[k:]) / max(self.verifications, 1) for k in range(1, self.steps + 1)]


def counted(steps: int, accepted: Iterable[int]) -> Counters:
    """Counters of a list of accepted drafts per verification."""
    counters = Counters(steps)
    for number in accepted:
        counters.count(number)
    return counters
