"""Fusing and splitting against torch.cat and views; shape checks against every way of being wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.mapping.arrangement import (
    Arrangement,
    Block,
    copy,
    gate_over_up,
    grouped_qkv,
    padded,
    swapped_halves,
)

from .statements import arrangements, fuse, grouped, split

Arranged = tuple[Arrangement, list[tuple[int, ...]]]
small = st.integers(1, 5)


def rows(*values: int) -> np.ndarray:
    return np.repeat(np.array(values), 2)[:, None] * np.ones((1, 8), int)


@given(groups=small, per_group=small, head_dim=small, width=st.one_of(st.none(), small))
def test_grouped_qkv_is_what_attention_reads(groups: int, per_group: int, head_dim: int, width: int | None) -> None:
    tail = () if width is None else (width,)
    counts = (groups * per_group, groups, groups)
    q, k, v = (torch.rand(count * head_dim, *tail) for count in counts)
    arrangement = grouped_qkv(groups * per_group, groups, head_dim)
    whole = fuse(arrangement, [q.numpy(), k.numpy(), v.numpy()])
    assert torch.equal(torch.from_numpy(whole), grouped(q, k, v, groups, head_dim))
    assert arrangement.whole_shape([tuple(t.shape) for t in (q, k, v)]) == whole.shape


def test_grouped_qkv_row_by_row() -> None:
    q, k, v = rows(10, 11, 12, 13), rows(20, 21), rows(30, 31)
    whole = fuse(grouped_qkv(4, 2, 2), [q, k, v])
    expected = [10, 10, 11, 11, 20, 20, 30, 30, 12, 12, 13, 13, 21, 21, 31, 31]
    assert (whole == np.array(expected)[:, None]).all()


def test_as_many_keys_as_queries_goes_head_by_head() -> None:
    q, k, v = rows(10, 11, 12, 13), rows(20, 21, 22, 23), rows(30, 31, 32, 33)
    whole = fuse(grouped_qkv(4, 4, 2), [q, k, v])
    assert whole[::2, 0].tolist() == [10, 20, 30, 11, 21, 31, 12, 22, 32, 13, 23, 33]


def test_groups_must_divide_heads() -> None:
    with pytest.raises(ValueError, match="3 key-value heads do not divide 4 attention heads"):
        grouped_qkv(4, 3, 2)


@given(extent=small, width=small)
def test_gate_over_up(extent: int, width: int) -> None:
    gate, up = torch.rand(extent, width), torch.rand(extent, width)
    whole = fuse(gate_over_up(extent), [gate.numpy(), up.numpy()])
    assert torch.equal(torch.from_numpy(whole), torch.cat([gate, up]))
    assert gate_over_up(extent).cuts == (extent,)


@given(height=small, half=small)
def test_swapped_halves_keeps_the_product(height: int, half: int) -> None:
    weight = torch.randint(-9, 9, (height, 2 * half))
    whole = torch.from_numpy(fuse(swapped_halves(2 * half), [weight.numpy()]))
    assert torch.equal(whole, torch.cat([weight[:, half:], weight[:, :half]], 1))
    hidden, embedding = torch.randint(-9, 9, (half,)), torch.randint(-9, 9, (half,))
    assert torch.equal(weight @ torch.cat([hidden, embedding]), whole @ torch.cat([embedding, hidden]))


@given(vocab=small, more=st.integers(0, 5), width=small)
def test_padded_rows_are_zero(vocab: int, more: int, width: int) -> None:
    table = torch.rand(vocab, width) + 1
    whole = fuse(padded(vocab, vocab + more), [table.numpy()])
    assert torch.equal(torch.from_numpy(whole), torch.nn.functional.pad(table, (0, 0, 0, more)))


def test_padding_never_shrinks() -> None:
    with pytest.raises(ValueError, match="3 padded rows cannot hold 4"):
        padded(4, 3)


def test_copy_is_the_part() -> None:
    part = np.arange(6).reshape(3, 2)
    assert (fuse(copy(3), [part]) == part).all()


@given(arrangements())
def test_split_undoes_fuse(arranged: Arranged) -> None:
    arrangement, shapes = arranged
    parts = [np.arange(1, 1 + np.prod(shape)).reshape(shape) + 1000 * n for n, shape in enumerate(shapes)]
    whole = fuse(arrangement, parts)
    assert whole.shape == arrangement.whole_shape(shapes)
    assert whole.shape[arrangement.axis] == arrangement.length
    for part, again in zip(parts, split(arrangement, whole, shapes), strict=True):
        assert (part == again).all()


@given(arrangements(), st.data())
def test_whole_shape_refuses_what_does_not_cover_once(arranged: Arranged, data: st.DataObject) -> None:
    arrangement, shapes = arranged
    blocks, axis = arrangement.blocks, arrangement.axis
    at = data.draw(st.integers(0, len(blocks) - 1))
    block, others = blocks[at], blocks[:at] + blocks[at + 1 :]
    how = data.draw(st.sampled_from(["gap", "twice", "longer", "shifted", "backwards", "nowhere", "extent"]))
    broken = {
        "gap": others,
        "twice": (*blocks, block),
        "longer": (*others, replace(block, stop=block.stop + 1)),
        "shifted": (*others, Block(block.part, block.start + 1, block.stop + 1)),
        "backwards": (*blocks, Block(block.part, block.stop, block.start)),
        "nowhere": (*blocks, Block(len(shapes), 0, 1)),
        "extent": blocks,
    }[how]
    if how == "extent":
        shape = shapes[block.part]
        shapes[block.part] = tuple(n + (i == axis) for i, n in enumerate(shape))
    with pytest.raises(ValueError):
        Arrangement(broken, axis, arrangement.padding).whole_shape(shapes)


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 4)], [(2, 3), (2,)]])
def test_whole_shape_refuses_parts_that_disagree_off_the_axis(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="disagree outside axis 0"):
        gate_over_up(2).whole_shape(shapes)
