"""Rolling equals megatron-core's `roll_tensor`: dense, packed, and on two gloo ranks under context parallelism."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ckpt_tools.errors import CkptError
from ckpt_tools.tune import rolling
from ckpt_tools.tune.rolling import first_tokens, roll_left, roll_part, split

from .roll_ranks import SIZE, Case, packed_params

ROOT = Path(__file__).resolve().parents[2]


def row(*shape: int) -> Tensor:
    """Every entry differs from every other, and none is 0."""
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)


def bounds(*ends: int) -> Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32)


CASES = {
    "dense": Case(row(1, 8), None),
    "batch": Case(row(3, 12), None),
    "floats": Case(row(2, 8) / 7, None),
    "packed": Case(row(1, 24), bounds(8, 12, 24)),
    "packed batch": Case(row(2, 16), bounds(4, 8, 16)),
    "one packed sequence": Case(row(1, 8), bounds(8)),
    "shortest sequences": Case(row(1, 12), bounds(4, 8, 12)),
}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Case -> per rank (Megatron's part, our part)."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save([tuple(case) for case in CASES.values()], folder / "cases.pt")
    command = [sys.executable, "-m", "tests.tune.roll_ranks", str(folder / "cases.pt"), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    per_rank = [torch.load(folder / f"{rank}.pt") for rank in range(SIZE)]
    return {name: [results[i] for results in per_rank] for i, name in enumerate(CASES)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_one_process_rolls_as_megatron(name: str) -> None:
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    case = CASES[name]
    packed = None if case.cu_seqlens is None else packed_params(case.cu_seqlens)
    expected, total = roll_tensor(case.row, packed_seq_params=packed)
    found = roll_left(case.row, case.cu_seqlens)
    assert torch.equal(found, expected)
    assert found.sum() == total


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_context_parallel_ranks_roll_as_megatron(name: str, on_ranks: dict[str, list[tuple[Tensor, Tensor]]]) -> None:
    for rank, (megatron, ours) in enumerate(on_ranks[name]):
        assert torch.equal(ours, megatron)
        assert torch.equal(ours, split(roll_left(*CASES[name]), rank, SIZE, CASES[name].cu_seqlens))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_rolling_the_parts_equals_splitting_the_rolled_row(size: int, packed: bool) -> None:
    """Any number of ranks, without processes; packed with an empty sequence and shortest ones."""
    unit = 2 * size
    cu_seqlens = bounds(unit, unit, 4 * unit, 6 * unit) if packed else None
    whole = row(2, 6 * unit)
    parts = [split(whole, rank, size, cu_seqlens) for rank in range(size)]
    firsts = torch.stack([first_tokens(part, size, cu_seqlens) for part in parts])
    for rank, part in enumerate(parts):
        expected = split(roll_left(whole, cu_seqlens), rank, size, cu_seqlens)
        assert torch.equal(roll_part(part, firsts, rank, cu_seqlens), expected)
    assert torch.equal(torch.cat(parts, -1).sort().values, whole)


def test_the_split_is_front_and_mirrored_tail() -> None:
    assert split(row(8), 0, 2).tolist() == [1, 2, 7, 8]
    assert split(row(8), 1, 2).tolist() == [3, 4, 5, 6]
    assert split(row(12), 0, 2, bounds(4, 12)).tolist() == [1, 4, 5, 6, 11, 12]


def test_the_input_is_left_as_it_was() -> None:
    ids = row(6)
    roll_left(ids, bounds(2, 6))
    assert torch.equal(ids, row(6))


@pytest.mark.parametrize("ends", [(3, 5), (5, 3, 6), (6, 12)])
def test_boundaries_that_do_not_cover_the_row_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(CkptError, match="cu-seqlens"):
        roll_left(row(6), bounds(*ends))


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(CkptError, match="multiples of 4"):
        split(row(14), 0, 2, bounds(8, 14))


def test_a_neighbours_token_from_the_wrong_side_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof above can fail: with front and tail exchanged among the boundary tokens it does."""
    exchanged = rolling.first_tokens(split(row(8), 0, 2), 2).flip(-1)
    firsts = torch.stack([exchanged, rolling.first_tokens(split(row(8), 1, 2), 2).flip(-1)])
    assert not torch.equal(roll_part(split(row(8), 0, 2), firsts, 0), split(roll_left(row(8)), 0, 2))
