"""Casts equal torch bit by bit; a value that does not fit is refused; plain and strided, whole and tiled."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.engine.cast import cast_bytes
from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.moves import Cast, Move, Side, link
from ckpt_tools.engine.program import Program
from ckpt_tools.errors import CkptError
from ckpt_tools.mapping.arrangement import swapped_halves
from ckpt_tools.mapping.rules import Naming, Rule, Spelling, Table, expand
from ckpt_tools.stores.base import Chunk, Image, Tensor

from .world import small_limits

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
PAIRS = list(permutations(TORCH, 2))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(("source", "target"), PAIRS)
@given(values=st.lists(st.floats(-60000, 60000, width=32), min_size=1), special=st.booleans())
def test_cast_equals_torch(source: str, target: str, values: list[float], special: bool) -> None:
    inputs = torch.tensor(values + [float("inf"), float("-inf"), float("nan"), -0.0] * special).to(TORCH[source])
    expected = inputs.to(TORCH[target])
    assert cast_bytes(memoryview(bytearray(raw(inputs))), Cast(source, target)) == raw(expected)


@pytest.mark.parametrize(
    ("source", "target", "value"), [("F32", "F16", 65520.0), ("BF16", "F16", -1e5), ("F32", "BF16", 3.4e38)]
)
def test_overflow_is_refused_with_both_numbers(source: str, target: str, value: float) -> None:
    data = memoryview(bytearray(raw(torch.tensor([1.0, value]).to(TORCH[source]))))
    with pytest.raises(CkptError) as caught:
        cast_bytes(data, Cast(source, target))
    finding = caught.value.findings[0]
    assert finding.code == "cast-overflow"
    assert f"{torch.finfo(TORCH[target]).max:.4g}" in finding.expected
    assert f"{abs(torch.tensor(value).to(TORCH[source]).item()):.4g}" in finding.actual


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_program_that_casts_and_permutes(source: str, target: str, tmp_path: Path) -> None:
    """Column halves exchanged and cast: strided moves, tiled by rows and, with small limits, by columns."""
    weight = torch.randn(50, 40).to(TORCH[source])
    (tmp_path / "in").write_bytes(raw(weight))
    rule = Rule((Spelling("whole"),), ("part",), ((50, 40),), swapped_halves(40))
    part, whole = (
        Tensor(name, dtype, (50, 40), (Chunk(0, 0, (0, 0), (50, 40)),))
        for name, dtype in (("part", source), ("whole", target))
    )
    rows = expand(Table((rule,)), Naming(False))
    moves = list(link(rows, Side({"part": part}), Side({"whole": whole}), to_megatron=True))
    program = Program([tmp_path / "in"], Image([("t", whole.nbytes)], [], {"whole": whole}), moves)
    program.check(0)
    assert program.casts
    expected = raw(torch.cat([weight[:, 20:], weight[:, :20]], 1).to(TORCH[target]))
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected
    with small_limits():
        execute(program, tmp_path / "small")
    assert (tmp_path / "small/t").read_bytes() == expected


def test_a_cast_larger_than_the_buffer(tmp_path: Path) -> None:
    weight = torch.randn(1500, 1000)
    (tmp_path / "in").write_bytes(raw(weight))
    count = weight.numel()
    move = Move(0, 0, 4 * count, 0, 0, 2 * count, 4 * count, 1, Cast("F32", "BF16"), 2 * count)
    execute(Program([tmp_path / "in"], Image([("t", 2 * count)], [], {}), [move]), tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == raw(weight.bfloat16())
