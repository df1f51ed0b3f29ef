"""Executing a program equals numpy, whatever the shapes, chunks, arrangements and limits."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.engine import program as program_module
from ckpt_tools.engine.execute import execute, tiles
from ckpt_tools.engine.moves import Cast, Move
from ckpt_tools.engine.program import Gather, Program
from ckpt_tools.errors import CkptError
from ckpt_tools.stores.base import Chunk, Image, Literal, Tensor, leading_boxes

from .world import Case, cases, literals_of, read_back, small_limits

slow_is_fine = settings(max_examples=60)


@slow_is_fine
@given(case=cases(), to_megatron=st.booleans(), small=st.booleans())
def test_executing_equals_numpy(case: Case, to_megatron: bool, small: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, target = Path(name), Path(name) / "out"
        program = case.program(root, to_megatron)
        program.check(case.padding_bytes(to_megatron))
        if small:
            with small_limits():
                execute(program, target)
        else:
            execute(program, target)
        found = read_back(program.image.tensors, [target / file for file, _ in program.image.files])
        expected = case.megatron if to_megatron else case.hf
        assert found.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array, err_msg=key)
        assert [(target / file).stat().st_size for file, _ in program.image.files] == [
            n for _, n in program.image.files
        ]


@slow_is_fine
@given(case=cases(), to_megatron=st.booleans(), data=st.data())
def test_check_finds_a_lost_and_a_doubled_move(case: Case, to_megatron: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        program = case.program(Path(name), to_megatron)
        at = data.draw(st.integers(0, len(program.moves) - 1))
        move, zero = program.moves[at], case.padding_bytes(to_megatron)
        for moves in (program.moves[:at] + program.moves[at + 1 :], [*program.moves, move]):
            with pytest.raises(CkptError) as caught:
                replace(program, moves=moves).check(zero)
            assert caught.value.findings[0].code == "program-incomplete"
        program.check(zero)


def test_check_finds_a_move_in_place_of_another_and_says_where() -> None:
    """As many bytes as there should be, some twice and some never."""
    tensor = Tensor("t", "U8", (100,), (Chunk(0, 0, (0,), (100,)),))
    moves = [Move(0, at, 50, 0, at, 50, 50, 1, None, 50) for at in (0, 30)]
    with pytest.raises(CkptError) as caught:
        Program([], Image([("weights", 100)], [], {"t": tensor}), moves).check(0)
    finding = caught.value.findings[0]
    assert (finding.code, finding.where) == ("program-incomplete", "weights at byte 30")


@given(case=cases(), to_megatron=st.booleans(), data=st.data())
@slow_is_fine
def test_tasks_cover_what_the_moves_and_literals_do(case: Case, to_megatron: bool, data: st.DataObject) -> None:
    """Byte for byte, once: gathering, splitting and cutting change nothing."""
    with tempfile.TemporaryDirectory() as name, small_limits():
        program = case.program(Path(name), to_megatron)
        program.image.literals += literals_of(case.megatron_files if to_megatron else case.hf_files)
        expected = sorted(b for move in program.moves for b in byte_copies(move))
        literal_bytes = sorted(
            (file, offset + i, value)
            for file, offset, data, zeros in program.image.literals
            for i, value in enumerate(data + bytes(zeros))
        )
        found: list[tuple[int, int, int, int]] = []
        constants: list[tuple[int, int, int]] = []
        for task in program.tasks():
            if isinstance(task, Move):
                found += byte_copies(task)
                continue
            assert 0 < task.nbytes <= 64
            at = task.offset
            for piece in task.pieces:
                if piece.data is None:
                    run = ((piece.source_file, piece.source + i, task.file, at + i) for i in range(piece.length))
                    found += run
                else:
                    constants += ((task.file, at + i, value) for i, value in enumerate(piece.data))
                at += piece.length
            assert at == task.offset + task.nbytes
        assert sorted(found) == expected
        assert sorted(constants) == literal_bytes


def byte_copies(move: Move) -> list[tuple[int, int, int, int]]:
    return [
        (
            move.source_file,
            move.source + r * move.source_stride + i,
            move.target_file,
            move.target + r * move.target_stride + i,
        )
        for r in range(move.rows)
        for i in range(move.width)
    ]


@st.composite
def any_moves(draw: st.DrawFn) -> Move:
    """Plain, strided and casting moves as `_overlap` makes them: element sizes 2 and 4, rows that do not overlap."""
    items = draw(st.sampled_from([(2, 2), (2, 4), (4, 2), (1, 1)]))
    cast = (
        None if items[0] == items[1] else Cast("BF16" if items[0] == 2 else "F32", "F32" if items[0] == 2 else "BF16")
    )
    count, rows = draw(st.integers(1, 90)), draw(st.integers(1, 20))
    steps = [count + draw(st.integers(0, 7)) for _ in range(2)]
    source, target = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    width, wide = count * items[0], count * items[1]
    return Move(0, source, steps[0] * items[0], 0, target, steps[1] * items[1], width, rows, cast, wide)


@given(move=any_moves(), limit=st.integers(64, 400))
def test_tiles_cover_exactly_and_fit(move: Move, limit: int) -> None:
    """Element by element (an element is what a cast maps): the tiles are the move, and their source spans fit."""
    item, wide = (2, 4) if move.cast and move.width < move.target_width else (4, 2) if move.cast else (1, 1)

    def elements(part: Move) -> list[tuple[int, int]]:
        assert part.width % item == 0
        assert part.target_width * item == part.width * wide
        return [
            (part.source + r * part.source_stride + i * item, part.target + r * part.target_stride + i * wide)
            for r in range(part.rows)
            for i in range(part.width // item)
        ]

    cut = list(tiles(move, limit))
    assert [e for tile in cut for e in elements(tile)] == elements(move)
    assert all((tile.rows - 1) * tile.source_stride + tile.width <= limit for tile in cut)


def test_a_chunk_that_spans_leading_indices_falls_apart_at_the_right_bytes() -> None:
    tensor = Tensor("t", "U16", (4, 3, 5), (Chunk(0, 100, (0, 0, 0), (1, 3, 5)), Chunk(7, 10, (1, 0, 0), (3, 3, 5))))
    boxes = leading_boxes(tensor, 1)
    assert boxes[0,] == [Chunk(0, 100, (0, 0), (3, 5))]
    assert boxes[3,] == [Chunk(7, 10 + 2 * 30, (0, 0), (3, 5))]
    assert leading_boxes(tensor, 2)[2, 1] == [Chunk(7, 10 + 30 + 10, (0,), (5,))]
    assert leading_boxes(tensor, 0)[()] == list(tensor.chunks)


def test_a_long_header_and_many_small_tensors_become_few_writes(tmp_path: Path) -> None:
    count, header = 5000, bytes(range(256)) * 3000
    source = tmp_path / "source"
    source.write_bytes(np.arange(count, dtype=np.uint16).tobytes())
    moves = [Move(0, 2 * i, 2, 0, len(header) + 2 * i, 2, 2, 1, None, 2) for i in range(count)]
    image = Image([("target", len(header) + 2 * count)], [Literal(0, 0, header)], {})
    program = Program([source], image, moves)
    tasks = list(program.tasks())
    assert len(tasks) == 1
    assert isinstance(tasks[0], Gather)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/target").read_bytes() == header + source.read_bytes()


def test_a_header_longer_than_a_gather_is_cut(tmp_path: Path) -> None:
    header = bytes(range(251)) * (3 * program_module.GATHER // 251)
    program = Program([], Image([("target", len(header))], [Literal(0, 0, header)], {}), [])
    assert 2 < len(list(program.tasks())) < 6
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/target").read_bytes() == header


def test_small_files_and_holes(tmp_path: Path) -> None:
    image = Image([("a/b", 10)], [Literal(0, 4, b"xy")], {}, {"c/d": b"small"})
    program = Program([], image, [])
    assert program.nbytes == 15
    timing = execute(program, tmp_path)
    assert (tmp_path / "a/b").read_bytes() == bytes(4) + b"xy" + bytes(4)
    assert (tmp_path / "c/d").read_bytes() == b"small"
    assert timing.write_s > 0


def test_progress_adds_up_to_what_tasks_write(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(1000))
    moves = [Move(0, 0, 900, 0, 0, 900, 900, 1, None, 900), Move(0, 900, 20, 0, 900, 25, 10, 4, None, 10)]
    done: list[int] = []
    with small_limits():
        execute(Program([source], Image([("t", 1000)], [], {}), moves), tmp_path / "out", done.append)
    assert sum(done) == 940
