"""slime's model of what speculation gains (its page on speculative decoding): one statement of the formula."""

from __future__ import annotations

from collections.abc import Sequence


def expected_accepted(by_position: Sequence[float], steps: int) -> float:
    """E[A] of a chain of `steps` drafts. `by_position[k]` is the share of verifications that accept more than k drafts.

    A shallower chain is a prefix of a deeper one, so its acceptance is the first part of the same list.
    """
    return sum(by_position[:steps])


def speed_up(accepted: float, steps: int, draft: float, verify: float, overhead: float, target: float) -> float:
    """(E[A] + 1) / ((steps * t_d + t_v + t_o) / t_t): against decoding with the target alone, all times in one unit.

    `draft` is the time of one draft step, `verify` that of verifying what `steps` of them drafted, `overhead` whatever else
    that takes, `target` a step of plain decoding.
    """
    return (accepted + 1) / ((steps * draft + verify + overhead) / target)
