"""L5: two right texts may part at a near tie, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from ckpt_tools.speculate.decode import Limits, plain
from ckpt_tools.speculate.lossless import TOLERANCE, compare, gaps, judge
from ckpt_tools.speculate.target import load_target

from . import worlds
from .conftest import Clockwork

BF16 = TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("gap", [0.001, 0.4])
def test_a_near_tie_passes_and_is_named(gap: float) -> None:
    ties, wrong = judge(torch.tensor([0, 0, 0, 0, 0, gap, 0, 0]), 0, BF16)
    assert wrong is None
    assert [(tie.token, pytest.approx(tie.gap)) for tie in ties] == [(5, gap)]


def test_an_exact_tie_is_none_that_needs_a_name() -> None:
    assert judge(torch.zeros(8), 0, BF16) == ([], None)


def test_a_clear_difference_is_an_error_with_its_place_and_gap() -> None:
    ties, wrong = judge(torch.tensor([0, 0.001, 0, 0, 0, 3.0, 0, 0.002]), 2, BF16)
    assert wrong is not None
    assert (wrong.code, wrong.severity) == ("smoke-not-lossless", "error")
    assert "prompt 2" in wrong.what
    assert "token 5" in wrong.what
    assert wrong.actual.startswith("a token 3 ")
    assert [tie.token for tie in ties] == [1]


def test_a_wrong_token_is_found_in_a_real_text_and_a_right_text_has_no_gap(clockwork: Clockwork) -> None:
    target = load_target(clockwork("llama"))
    text = plain(target, worlds.START, Limits(10)).tokens
    assert float(gaps(target, worlds.START, text).max()) < 1e-5
    broken = [*text[:4], (text[4] + 1) % 40, *text[5:]]
    _, wrong = compare(target, worlds.START, text, broken)
    assert wrong is not None
    assert "token 4" in wrong.what
