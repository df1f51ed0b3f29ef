"""What a writer hands over, and the byte program that puts it into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import NamedTuple

from ...convert.plan import natural_order
from ...engine.moves import Dequant, Move
from ...engine.program import Program
from ...mapping.arrangement import Shape
from ...stores import hf_folder
from ...stores.base import Literal
from ...stores.dtypes import BY_NAME
from ..spec import HeadTensor


class Made(NamedTuple):
    """A small tensor whose bytes were computed (vocabulary maps)."""

    dtype: str
    shape: Shape
    data: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """A head in a target format: config.json, tensors under their names there, modelling code to lie beside them."""

    format: str
    architecture: str
    config: bytes
    tensors: Mapping[str, HeadTensor]
    made: Mapping[str, Made] = field(default_factory=dict)
    code: tuple[Path, ...] = ()


class Placed(NamedTuple):
    """Where a tensor's bytes begin in the destination."""

    file: int
    offset: int


def program_of(written: Written, max_shard: int) -> Program:
    """Raises CkptError if the moves do not cover every byte."""
    entries = [(name, entry.dtype, entry.shape) for name, entry in written.tensors.items()]
    entries += [(name, made.dtype, made.shape) for name, made in written.made.items()]
    image = hf_folder.lay_out(sorted(entries, key=lambda entry: natural_order(entry[0])), max_shard)
    places = {name: Placed(t.chunks[0].file, t.chunks[0].offset) for name, t in image.tensors.items()}
    image.literals += [Literal(*places[name], made.data) for name, made in written.made.items()]
    sources, moves = placed_moves(written.tensors, places, [])
    unmoved = sum(len(made.data) for made in written.made.values()) + zero_bytes(written.tensors)
    program = Program(sources, image, moves)
    program.check(unmoved)
    return program


def zero_bytes(tensors: Mapping[str, HeadTensor]) -> int:
    """Bytes of tensors that come from nowhere and are zero."""
    return sum(prod(e.shape) * BY_NAME[e.dtype].itemsize for e in tensors.values() if not e.files)


def placed_moves(
    tensors: Mapping[str, HeadTensor], places: Mapping[str, Placed], sources: list[Path]
) -> tuple[list[Path], list[Move]]:
    """The moves of every tensor to its place; their files are appended to `sources` where they are not in it yet."""
    numbers = {path: number for number, path in enumerate(sources)}
    moves: list[Move] = []
    for name, entry in tensors.items():
        for path in entry.files:
            numbers.setdefault(path, len(numbers))
        here = [numbers[path] for path in entry.files]
        moves += [_placed(move, here, places[name]) for move in entry.moves]
    return list(numbers), moves


def _placed(move: Move, numbers: list[int], place: Placed) -> Move:
    cast = move.cast
    if isinstance(cast, Dequant):
        cast = cast._replace(scale=cast.scale._replace(file=numbers[cast.scale.file]))
    return move._replace(
        source_file=numbers[move.source_file],
        target_file=place.file,
        target=place.offset + move.target,
        cast=cast,
    )
