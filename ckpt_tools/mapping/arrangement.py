"""Arrangements: how a whole (one Megatron tensor) is built from its parts (the Hugging Face tensors).

An arrangement is an ordered list of blocks `(part, start, stop)` along one axis, plus zero padding at the end. Fusing,
splitting, shape checks and the byte program all follow from that list; nobody writes an inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows (or columns) `start..stop` of part number `part`, every `step`-th of them."""

    part: int
    start: int
    stop: int
    step: int = 1

    @property
    def length(self) -> int:
        return -(-(self.stop - self.start) // self.step)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Blocks along `axis`, in the order of the whole, then `padding` zero rows.

    `cuts` are the positions in the whole where Megatron itself cuts its chunks (gate | up); they never change meaning.
    """

    blocks: tuple[Block, ...]
    axis: int = 0
    padding: int = 0
    cuts: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Extent of the whole along `axis`."""
        return sum(block.length for block in self.blocks) + self.padding

    def whole_shape(self, parts: Sequence[Shape]) -> Shape:
        """Shape of the whole built from `parts`.

        Raises ValueError unless the blocks cover every part exactly once and the parts agree off the axis.
        """
        if any(not 0 <= b.part < len(parts) or b.start > b.stop for b in self.blocks):
            raise ValueError(f"blocks of parts that are not there, or backwards: {self.blocks}")
        off_axis = {shape[: self.axis] + shape[self.axis + 1 :] for shape in parts}
        if len(off_axis) != 1:
            raise ValueError(f"parts disagree outside axis {self.axis}: {list(parts)}")
        for number, shape in enumerate(parts):
            mine = [block for block in self.blocks if block.part == number]
            if any(block.step > 1 for block in mine):
                rows = sorted(row for block in mine for row in range(block.start, block.stop, block.step))
                if rows != list(range(shape[self.axis])):
                    raise ValueError(
                        f"blocks {mine} do not cover part {number} of extent {shape[self.axis]} exactly once"
                    )
                continue
            taken = sorted((b.start, b.stop) for b in mine)
            edges = [0, *(stop for _, stop in taken)]
            if [start for start, _ in taken] != edges[:-1] or edges[-1] != shape[self.axis]:
                raise ValueError(f"blocks {taken} do not cover part {number} of extent {shape[self.axis]} exactly once")
        rest = off_axis.pop()
        return (*rest[: self.axis], self.length, *rest[self.axis :])


def copy(extent: int) -> Arrangement:
    """The whole is the one part."""
    return Arrangement((Block(0, 0, extent),))


def gate_over_up(extent: int) -> Arrangement:
    """[gate; up], each of `extent` rows, whatever the tensor-parallel size (mcore mlp.py, apply_swiglu_sharded_factory)."""
    return Arrangement((Block(0, 0, extent), Block(1, 0, extent)), cuts=(extent,))


def interleaved_gate_up(extent: int) -> Arrangement:
    """[gate; up] from one part whose rows alternate gate, up (gpt-oss)."""
    return Arrangement((Block(0, 0, 2 * extent, 2), Block(0, 1, 2 * extent, 2)), cuts=(extent,))


def grouped_qkv(heads: int, groups: int, head_dim: int) -> Arrangement:
    """Per key-value group: its query heads, one key head, one value head (mcore attention.py, linear_qkv).

    Parts are q `[heads * head_dim, ...]`, k and v `[groups * head_dim, ...]`. Raises ValueError if groups do not divide
    heads.
    """
    if heads % groups:
        raise ValueError(f"{groups} key-value heads do not divide {heads} attention heads")
    per_group = heads // groups * head_dim
    blocks: list[Block] = []
    for group in range(groups):
        kv = (group * head_dim, (group + 1) * head_dim)
        blocks += [Block(0, group * per_group, (group + 1) * per_group), Block(1, *kv), Block(2, *kv)]
    return Arrangement(tuple(blocks))


def padded(rows: int, padded_rows: int) -> Arrangement:
    """All rows, then zeros up to `padded_rows`; the zeros are dropped on the way back."""
    if padded_rows < rows:
        raise ValueError(f"{padded_rows} padded rows cannot hold {rows}")
    return Arrangement((Block(0, 0, rows),), padding=padded_rows - rows)


def swapped_halves(columns: int) -> Arrangement:
    """The two column halves exchanged (MiMo reads [hidden, embedding], mcore's eh_proj [embedding, hidden])."""
    half = columns // 2
    return Arrangement((Block(0, half, columns), Block(0, 0, half)), axis=1)
