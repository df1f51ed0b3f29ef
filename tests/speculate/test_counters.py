"""L1: every figure has one definition."""

from __future__ import annotations

import pytest

from ckpt_tools.speculate.counters import Counters, counted


def test_the_published_example_has_its_five_figures() -> None:
    counters = counted(3, [3, 0, 1])
    assert counters.accepted_per_step == pytest.approx(4 / 3)
    assert counters.accept_length == pytest.approx(7 / 3)
    assert counters.accept_rate == pytest.approx(4 / 9)
    assert counters.by_position == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert counters.histogram == [1, 1, 0, 1]


def test_without_an_accepted_draft_the_length_is_exactly_one() -> None:
    counters = counted(3, [0, 0])
    assert (counters.accept_length, counters.accepted_per_step, counters.accept_rate) == (1.0, 0.0, 0.0)


def test_before_any_verification_nothing_divides_by_zero() -> None:
    assert Counters(2).by_position == [0.0, 0.0]
