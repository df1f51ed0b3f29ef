"""Lists of names in findings are whole: long ones are folded, never cut where one could not tell what is missing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.report import SHOWN, folded, listed


def test_a_short_list_is_told_as_it_is() -> None:
    names = [f"layers.{i}.weight" for i in range(SHOWN)]
    assert listed(names) == ", ".join(names)
    assert listed([]) == ""


def test_a_long_list_is_folded_and_complete() -> None:
    """The experts of an MTP layer are hundreds of names and three kinds of them."""
    names = [f"mtp.0.experts.{e}.{part}.weight" for e in range(256) for part in ("gate", "up", "down")]
    assert listed([*names, "mtp.0.router.weight"]) == (
        "mtp.0.experts.{0..255}.gate.weight, mtp.0.experts.{0..255}.up.weight, mtp.0.experts.{0..255}.down.weight, "
        "mtp.0.router.weight"
    )


def test_a_folded_name_never_claims_one_that_is_not_listed() -> None:
    names = ["a.0.x.0", "a.0.x.1", "a.1.x.0", "a.2.x.0", "a.2.x.1", "a.02.x.0"]
    assert folded(names) == ["a.{0,2}.x.{0..1}", "a.1.x.0", "a.02.x.0"]


def unfolded(name: str) -> list[str]:
    """What a folded name stands for."""
    choices = []
    for segment in name.replace("..", "~").split("."):
        spans = [span.split("~") for span in segment[1:-1].split(",")] if segment.startswith("{") else []
        choices.append([str(n) for a, *b in spans for n in range(int(a), int((b or [a])[0]) + 1)] or [segment])
    return [".".join(chosen) for chosen in product(*choices)]


segments = st.lists(st.sampled_from(["a", "b", "0", "1", "2", "10"]), min_size=1, max_size=4)


@given(names=st.lists(segments.map(".".join), max_size=40))
def test_folding_loses_and_invents_nothing(names: list[str]) -> None:
    found = [each for name in folded(names) for each in unfolded(name)]
    assert sorted(found) == sorted(set(names))


@pytest.mark.parametrize("count", [61, 500])
def test_what_does_not_fold_is_counted(count: int) -> None:
    names = [f"word{i}" for i in range(count)]
    assert listed(names).endswith(f"word59, and {count - 60} more")
