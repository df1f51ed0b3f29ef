"""The cost model: predictions and measurements out of times and counts, by hand."""

from __future__ import annotations

import pytest

from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Times
from ckpt_tools.speculate.measure import Tally, timing

DRAFT, OVERHEAD = (
    3 / 130,
    2.5 / 90,
)  # seconds: 3 in the head for 50 x 1 + 40 x 2 steps; 2.5 elsewhere in 90 verifications


@pytest.fixture
def tally() -> Tally:
    """Plain decoding at 0.1 s a token. One step: 50 verifications, half of them accept. Two: 40, of which 16 accept one draft
    and 10 both. A pass over 2, 3, 6 tokens takes 1.2, 1.5, 2 times one over a single token."""
    return Tally(
        plain=Times(target=10.0, loop=10.0),
        plain_tokens=100,
        plain_passes=100,
        times={1: Times(draft=1.0, target=6.0, loop=8.0), 2: Times(draft=2.0, target=6.0, loop=9.5)},
        counters={1: Counters(1, 50, 25, 50, histogram=[25, 25]), 2: Counters(2, 40, 26, 80, histogram=[24, 6, 10])},
        tokens={1: 75, 2: 66},
        verify={1: 3.0, 2: 3.6, 3: 4.5, 6: 6.0},
    )


def test_a_chain_is_predicted_from_the_deepest(tally: Tally) -> None:
    """E[A] of one step is the first position of the run with two: 16 of 40."""
    found = timing(tally)
    assert found is not None
    assert (found.target, found.plain_tokens_per_second) == pytest.approx((100.0, 10.0))
    assert (found.draft, found.overhead) == pytest.approx((DRAFT * 1e3, OVERHEAD * 1e3))
    assert found.verify == pytest.approx([100.0, 120.0, 150.0])
    one, two = found.depths
    assert one.predicted == pytest.approx(1.4 / ((DRAFT + 0.12 + OVERHEAD) / 0.1))
    assert two.predicted == pytest.approx((1 + 16 / 40 + 10 / 40) / ((2 * DRAFT + 0.15 + OVERHEAD) / 0.1))
    assert (one.measured, two.measured) == pytest.approx((75 / 8 / 10, 66 / 9.5 / 10))
    assert (one.accept_length, two.accept_length) == pytest.approx((1.5, 1.65))
    assert one.error == pytest.approx(one.predicted / one.measured - 1)
    assert found.best_steps == 0


def test_a_tree_is_predicted_from_its_own_run_and_size(tally: Tally) -> None:
    tally.counters[2].drafts = 5
    found = timing(tally, chain=False)
    assert found is not None
    one, two = found.depths
    assert one.predicted == pytest.approx(1.5 / ((DRAFT + 0.12 + OVERHEAD) / 0.1))
    assert two.predicted == pytest.approx(1.65 / ((2 * DRAFT + 0.2 + OVERHEAD) / 0.1))


def test_nothing_is_timed_where_nothing_went_on(tally: Tally) -> None:
    """Texts of one token: no pass of the loop ran."""
    tally.plain.loop = 0.0
    assert timing(tally) is None
    assert timing(Tally()) is None


def test_the_best_depth_is_the_fastest_that_was_measured(tally: Tally) -> None:
    tally.tokens = {1: 90, 2: 120}
    found = timing(tally)
    assert found is not None and found.best_steps == 2
