"""Dealing tasks out: each to one rank, files whole, loads even."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.engine.codecs import Decode, Stored, Take
from ckpt_tools.engine.moves import Move
from ckpt_tools.engine.program import Task, files_of
from ckpt_tools.engine.shares import share_of

STORED = Stored("transposed", "BF16", 0, 0, (2, 2))


def copy(file: int, size: int) -> Move:
    return Move(0, 0, size, file, 0, size, size, 1, None, size)


def decode(files: set[int]) -> Decode:
    return Decode(STORED, "BF16", tuple(Take(0, 1, 1, file, 0) for file in files), 8)


tasks_: st.SearchStrategy[Task] = st.one_of(
    st.builds(copy, st.integers(0, 9), st.integers(1, 100)),
    st.builds(decode, st.sets(st.integers(0, 9), min_size=1, max_size=3)),
)


@given(st.lists(tasks_, max_size=40), st.integers(1, 6))
def test_every_task_has_one_rank_and_every_file_has_one_rank(tasks: list[Task], size: int) -> None:
    numbered = list(enumerate(tasks))
    shares = [share_of(numbered, rank, size) for rank in range(size)]
    assert sorted(number for share in shares for number, _ in share) == list(range(len(tasks)))
    owners: dict[int, set[int]] = {}
    for rank, share in enumerate(shares):
        for _, task in share:
            for file in files_of(task):
                owners.setdefault(file, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())


def test_loads_are_even() -> None:
    tasks = list(enumerate(copy(file, 100) for file in range(12) for _ in range(5)))
    for size in (1, 2, 3, 4, 6, 12):
        assert [len(share_of(tasks, rank, size)) for rank in range(size)] == [60 // size] * size


def test_files_that_hang_together_stay_together() -> None:
    """A matrix over files 0 and 1, another over 1 and 2: one rank writes all three."""
    tasks = list(enumerate([decode({0, 1}), copy(3, 5), decode({1, 2}), copy(2, 1), copy(4, 5)]))
    shares = [{number for number, _ in share_of(tasks, rank, 2)} for rank in range(2)]
    assert {0, 2, 3} in shares
