"""Chunks that leave a part of their tensor out, or hold one twice: Megatron itself does not notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.stores.base import tile_exactly
from ckpt_tools.stores.torch_dist.metadata import Box
from tests.engine.world import tilings
from tests.stores.make import STACK

from .directories import only, with_metadata


def tall(box: Box, by: int) -> Box:
    return box._replace(shape=(box.shape[0], box.shape[1] + by, *box.shape[2:]))


@pytest.mark.parametrize(
    "change",
    [
        lambda boxes: boxes[:-1],
        lambda boxes: (),
        lambda boxes: (*boxes[:-1], tall(boxes[-1], -1)),
        lambda boxes: (*boxes[:-1], tall(boxes[-1], 1)),
        lambda boxes: (*boxes, boxes[0]._replace(origin=(0, 2, 0))),
        lambda boxes: (*boxes[:-1], boxes[-1]._replace(origin=(2, 3, 0))),  # as many elements as it should be
        lambda boxes: (*boxes[:-1], boxes[-1]._replace(origin=(7, 4, 0))),
    ],
    ids=["one missing", "none", "too short", "too tall", "overlapping", "overlap and hole", "outside"],
)
def test_chunks_that_do_not_tile(change: Callable[[tuple[Box, ...]], tuple[Box, ...]], tmp_path: Path) -> None:
    finding = only(with_metadata(tmp_path, change))
    assert finding.code == "chunks-do-not-tile"
    assert STACK.name in finding.what
    assert finding.expected == "96 elements of [3, 8, 4]"


@given(shape=st.lists(st.integers(1, 5), max_size=3).map(tuple), data=st.data())
def test_tilings_are_accepted_and_a_disturbed_one_is_not(shape: tuple[int, ...], data: st.DataObject) -> None:
    boxes = data.draw(tilings(shape))
    assert tile_exactly(boxes, shape)
    at = data.draw(st.integers(0, len(boxes) - 1))
    assert not tile_exactly(boxes[:at] + boxes[at + 1 :], shape)
    assert not tile_exactly([*boxes, boxes[at]], shape)
    if shape:
        axis = data.draw(st.integers(0, len(shape) - 1))
        origin, size = boxes[at]
        moved = tuple(o + (d == axis) for d, o in enumerate(origin))
        assert not tile_exactly([*boxes[:at], (moved, size), *boxes[at + 1 :]], shape)


def test_a_large_grid_is_checked_quickly() -> None:
    """61 layers of 256 experts in halves: what a large mixture of experts stores in one tensor."""
    boxes = [((i, e, h, 0), (1, 1, 2, 9)) for i in range(61) for e in range(256) for h in (0, 2)]
    assert tile_exactly(boxes, (61, 256, 4, 9))
    assert not tile_exactly([*boxes[:-1], boxes[0]], (61, 256, 4, 9))
