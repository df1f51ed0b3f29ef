"""What is handed to the target for verification, and how its tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .head import Head

ROOT = -1  # the parent of a first draft: the target's own last token
Choose = Callable[[Tensor], tuple[int, Tensor | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """`tokens` are target ids; `probs [k, V]` the distributions they were drawn from, None where they are the likeliest.

    `parents[i]` is the draft that draft i follows, an earlier one, or ROOT; none at all means a chain.
    """

    tokens: list[int]
    probs: Tensor | None = None
    parents: tuple[int, ...] = ()

    def parent(self, number: int) -> int:
        return self.parents[number] if self.parents else number - 1

    def children(self, number: int) -> list[int]:
        """The drafts that follow draft `number`, in their order."""
        return [i for i in range(number + 1, len(self.tokens)) if self.parent(i) == number]

    def depths(self) -> list[int]:
        """How many drafts lead to each, itself included."""
        found: list[int] = []
        for number in range(len(self.tokens)):
            parent = self.parent(number)
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found

    def rejected(self, path: list[int]) -> list[int]:
        """The tokens that were up for the place after the accepted drafts `path`: of a chain, all that is left of it."""
        last = path[-1] if path else ROOT
        return [self.tokens[i] for i in self.children(last)] if self.parents else self.tokens[last + 1 :]


def likeliest(head: Head) -> Choose:
    """The argmax of the draft vocabulary."""

    def choose(logits: Tensor) -> tuple[int, Tensor | None]:
        return int(head.target_ids(logits.argmax(-1))), None

    return choose
