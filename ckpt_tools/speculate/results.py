"""What a smoke test reports. Every figure has one definition, given here and in docs/smoke.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from .counters import Counters

OWN, ACCEPTED, REJECTED = "own", "accepted", "rejected"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`accepted_per_step`: accepted drafts per verification, 0 to steps. `accept_length`: that and the target's own (bonus)
    token, 1 to steps + 1. `accept_rate`: accepted of proposed drafts. `by_position[k]`: share of verifications that accepted
    at least k + 1 drafts. `histogram[a]`: verifications that accepted a drafts. `tokens`: emitted in all."""

    verifications: int
    accepted: int
    proposed: int
    tokens: int
    accepted_per_step: float
    accept_length: float
    accept_rate: float
    by_position: list[float]
    histogram: list[int]


def acceptance(counters: Counters) -> Acceptance:
    return Acceptance(
        verifications=counters.verifications,
        accepted=counters.accepted,
        proposed=counters.proposed,
        tokens=counters.tokens,
        accepted_per_step=counters.accepted_per_step,
        accept_length=counters.accept_length,
        accept_rate=counters.accept_rate,
        by_position=counters.by_position,
        histogram=list(counters.histogram),
    )


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """The head's first draft against the target's text, every position, teacher-forced.

    `cross_entropy` (nats) over the `tokens` that the draft vocabulary has (null where it has none of them), `uniform` =
    ln(size of the draft vocabulary),
    `entropy` (nats) of the head's own distributions, `accuracy`: share of all positions whose likeliest draft is right,
    `coverage`: share of tokens that the draft vocabulary has.
    """

    cross_entropy: float | None
    uniform: float
    entropy: float
    accuracy: float
    coverage: float
    tokens: int

    @property
    def nats(self) -> float:
        """The cross-entropy as a number: infinite where no token can be drafted."""
        return inf if self.cross_entropy is None else self.cross_entropy


@dataclass(frozen=True, slots=True)
class Depth:
    """One number of draft steps. Speed-ups are against the target alone: `predicted` from the costs and the acceptance by
    position, `measured` from tokens per second of the same prompts in the same run; `error` = predicted / measured - 1."""

    steps: int
    accept_length: float
    tokens_per_second: float
    predicted: float
    measured: float
    error: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds. `draft`: per draft step. `target`: a pass of plain decoding. `verify[n]`: a pass of the target over a token
    and the drafts of n steps. `overhead`: per verification, what is neither. `best_steps` is 0 where no depth is faster than
    the target alone."""

    draft: float
    verify: list[float]
    target: float
    overhead: float
    plain_tokens_per_second: float
    depths: list[Depth]
    best_steps: int


@dataclass(frozen=True, slots=True)
class Tie:
    """A place where the two texts differ although the target could not tell the tokens apart: `gap` is its logit of the
    likeliest token minus that of the one that was emitted."""

    prompt: int
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text: the target's own tokens, accepted drafts, or drafts that were rejected there."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and what came of it; `equal` to plain decoding (null where sampling leaves nothing to compare)."""

    prompt: str
    text: str
    tokens: int
    equal: bool | None
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setting:
    """How it was run. `method` is "greedy", "exact" (rejection sampling) or "target-only". `topk` above 1: trees of
    `num_draft_tokens` tokens, the one before the drafts included (null for chains)."""

    device: str
    dtype: str
    steps: int
    max_new_tokens: int
    prompts: int
    method: str
    temperature: float
    threads: int
    torch: str
    topk: int = 1
    num_draft_tokens: int | None = None


@dataclass(slots=True)
class SmokeReport:
    """`target_hash` and `draft_hash` say which weights were measured. `timing` is null where no depth was timed, `loss`
    where too little text came out."""

    target: str
    draft: str
    kind: str
    form: str
    target_hash: str
    draft_hash: str
    setting: Setting
    lossless: bool | None
    acceptance: Acceptance
    ties: list[Tie] = field(default_factory=list)
    loss: HeadLoss | None = None
    timing: Timing | None = None
    texts: list[Text] = field(default_factory=list)
    server: str = ""
