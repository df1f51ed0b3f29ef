"""Block-quantised sources: values times the scale of their block, whatever is cut, permuted and tiled in between."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.engine.cast import transformed
from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.files import Handles
from ckpt_tools.engine.moves import Cast, Dequant, Move, Scale, Side, link
from ckpt_tools.engine.program import Program
from ckpt_tools.mapping.arrangement import Arrangement, swapped_halves
from ckpt_tools.mapping.rules import Naming, Rule, Spelling, Table, expand
from ckpt_tools.stores.base import Chunk, Image, Tensor
from tests.mapping.statements import arrangements, fuse

from .world import small_limits, tilings, window

BLOCK = (2, 3)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def stretched(scales: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The scale of every element."""
    rows = scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return rows[: shape[0], : shape[1]]


@settings(max_examples=60)
@given(arranged=arrangements(dims=2), small=st.booleans(), seed=st.integers(0, 99), data=st.data())
def test_dequantising_equals_torch(
    arranged: tuple[Arrangement, list[tuple[int, ...]]], small: bool, seed: int, data: st.DataObject
) -> None:
    """Every part has scales of its own; the destination is bf16 in random chunks."""
    arrangement, shapes = arranged
    torch.manual_seed(seed)
    rule = Rule((Spelling("w"),), tuple(f"p{n}" for n in range(len(shapes))), tuple(shapes), arrangement)
    content, parts, scales, expected = b"", {}, {}, []
    for name, shape in zip(rule.hf, shapes, strict=True):
        values = torch.randn(shape).mul(50).to(torch.float8_e4m3fn)
        grid = torch.rand(-(-shape[0] // BLOCK[0]), -(-shape[1] // BLOCK[1])) + 0.5
        parts[name] = Tensor(name, "F8_E4M3", shape, (Chunk(0, len(content), (0, 0), shape),))
        scales[name] = Scale(0, len(content) + values.numel(), "F32", grid.shape[1], BLOCK, ((0, shape[0], 0),))
        content += raw(values) + raw(grid)
        expected.append((values.float() * stretched(grid, shape)).bfloat16().float().numpy())
    whole, offset, chunks = rule.whole_shape, 0, []
    for origin, size in data.draw(tilings(whole)):
        chunks.append(Chunk(0, offset, origin, size))
        offset += 2 * prod(size)
    target = Tensor("w", "BF16", whole, tuple(chunks))
    moves = list(link(expand(Table((rule,)), Naming(False)), Side(parts, scales), Side({"w": target}), True))
    with tempfile.TemporaryDirectory() as place, small_limits() if small else nullcontext():
        root = Path(place)
        (root / "in").write_bytes(content)
        program = Program([root / "in"], Image([("t", target.nbytes)], [], {"w": target}), moves)
        program.check(target.nbytes // whole[arrangement.axis] * arrangement.padding)
        execute(program, root / "out")
        found = (root / "out/t").read_bytes()
    made = fuse(arrangement, expected)
    for chunk in chunks:
        run = raw(torch.from_numpy(made[window((chunk.origin, chunk.shape))].copy()).bfloat16())
        assert found[chunk.offset : chunk.offset + len(run)] == run


@pytest.mark.parametrize("shape", [(40, 30), (7, 200), (1, 300)])
def test_tiles_of_rows_and_of_columns_find_their_scales(shape: tuple[int, int], tmp_path: Path) -> None:
    values = torch.randn(shape).mul(50).to(torch.float8_e4m3fn)
    grid = torch.rand(-(-shape[0] // BLOCK[0]), -(-shape[1] // BLOCK[1])) + 0.5
    (tmp_path / "in").write_bytes(raw(values) + raw(grid))
    part, whole = (Tensor("w", dtype, shape, (Chunk(0, 0, (0, 0), shape),)) for dtype in ("F8_E4M3", "BF16"))
    scale = Scale(0, values.numel(), "F32", grid.shape[1], BLOCK, ((0, shape[0], 0),))
    rule = Rule((Spelling("w"),), ("w",), (shape,), swapped_halves(shape[1]))
    rows = expand(Table((rule,)), Naming(False))
    moves = list(link(rows, Side({"w": part}, {"w": scale}), Side({"w": whole}), to_megatron=True))
    with small_limits():
        execute(Program([tmp_path / "in"], Image([("t", whole.nbytes)], [], {"w": whole}), moves), tmp_path / "out")
    made = values.float() * stretched(grid, shape)
    half = shape[1] // 2
    assert (tmp_path / "out/t").read_bytes() == raw(torch.cat([made[:, half:], made[:, :half]], 1).bfloat16())


def test_bands_restart_the_grid_inside_a_fused_matrix(tmp_path: Path) -> None:
    """Rows 0..3 and 3..5 were quantised apart: the second grid starts at row 3, not at a multiple of the block."""
    values = torch.ones(5, 3).to(torch.float8_e4m3fn)
    grid = torch.tensor([[1.0], [2.0], [3.0]])
    (tmp_path / "in").write_bytes(raw(values) + raw(grid))
    scale = Scale(0, 15, "F32", 1, BLOCK, ((0, 3, 0), (3, 5, 2)))
    handles = Handles([tmp_path / "in"], 0)
    try:
        for first, rows in ((0, 5), (2, 3), (4, 1)):
            move = Move(0, 3 * first, 3, 0, 0, 6, 3, rows, Dequant("F8_E4M3", "BF16", scale, first, 0), 6)
            made = transformed(move, memoryview(bytearray(raw(values[first : first + rows]))), handles)
            found = torch.frombuffer(bytearray(made), dtype=torch.bfloat16).reshape(rows, 3)[:, 0].tolist()
            assert found == [1.0, 1.0, 2.0, 3.0, 3.0][first : first + rows]
    finally:
        handles.close()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
@given(values=st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=9), shift=st.sampled_from([1.0, -1.0]))
def test_shifts_are_rounded_once(dtype: str, values: list[float], shift: float) -> None:
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
    inputs = torch.tensor(values, dtype=torch.float64).to(kinds[dtype])
    move = Move(0, 0, 0, 0, 0, 0, len(raw(inputs)), 1, Cast(dtype, dtype, shift), len(raw(inputs)))
    made = transformed(move, memoryview(bytearray(raw(inputs))), Handles([], 0))
    exact = (inputs.double() if dtype == "F64" else inputs.float()) + shift
    assert made == raw(exact.to(kinds[dtype]))
