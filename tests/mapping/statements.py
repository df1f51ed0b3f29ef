"""What arrangements mean, said with numpy and torch, and strategies that draw them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from ckpt_tools.mapping.arrangement import Arrangement, Block


def fuse(arrangement: Arrangement, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The whole by the definition: blocks one after another, then zeros."""
    axis = arrangement.axis
    pieces = [np.take(parts[b.part], range(b.start, b.stop), axis) for b in arrangement.blocks]
    zeros = [arrangement.padding if i == axis else n for i, n in enumerate(parts[0].shape)]
    return np.concatenate([*pieces, np.zeros(zeros, parts[0].dtype)], axis)


def split(arrangement: Arrangement, whole: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The parts of a whole by the definition read backwards."""
    parts = [np.zeros(shape, whole.dtype) for shape in shapes]
    position = 0
    for b in arrangement.blocks:
        piece = np.take(whole, range(position, position + b.length), arrangement.axis)
        np.moveaxis(parts[b.part], arrangement.axis, 0)[b.start : b.stop] = np.moveaxis(piece, arrangement.axis, 0)
        position += b.length
    return parts


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int, head_dim: int) -> torch.Tensor:
    """Megatron's linear_qkv the way its attention reads it: per group all queries, then key, then value."""
    view = [t.reshape(groups, -1, head_dim, *t.shape[1:]) for t in (q, k, v)]
    return torch.cat(view, 1).reshape(-1, *q.shape[1:])


def cuts(extent: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Random neighbouring ranges that cover 0..extent."""
    inner = st.sets(st.integers(1, extent - 1)) if extent > 1 else st.just(set[int]())
    return inner.map(lambda s: list(zip([0, *sorted(s)], [*sorted(s), extent], strict=True)))


@st.composite
def arrangements(draw: st.DrawFn, dims: int | None = None) -> tuple[Arrangement, list[tuple[int, ...]]]:
    """A random valid arrangement with the shapes of its parts: every block covered once, in any order."""
    rank = draw(st.integers(1, 2)) if dims is None else dims
    axis = draw(st.integers(0, rank - 1))
    extents = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    rest = [draw(st.integers(1, 4)) for _ in range(rank)]
    blocks = [Block(part, *cut) for part, extent in enumerate(extents) for cut in draw(cuts(extent))]
    shapes = [tuple(extent if i == axis else n for i, n in enumerate(rest)) for extent in extents]
    order = tuple(draw(st.permutations(blocks)))
    return Arrangement(order, axis, draw(st.integers(0, 3))), shapes
