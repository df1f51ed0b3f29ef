"""Laying out a torch-dist directory: one frame per chunk, object frames, `.metadata`, `metadata.json`, `common.pt`."""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from ...mapping.arrangement import Shape
from ..base import Chunk, Image, Literal, Tensor, positions
from ..dtypes import BY_NAME
from .frames import PAGE, object_frame, tensor_frame
from .metadata import Box, Entry, Stored
from .metadata_writer import serialise

MAX_CHUNK = 128 << 20  # bytes; DCP loads whole chunks, so this also bounds what a rank reads in vain
CHECKPOINT_VERSION = 3.0  # absent or lower makes Megatron permute QKV (checkpointing.py, fix_query_key_value_ordering)
SHARDED_BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
EXTRA_STATE_NONE = pickle.dumps([None], protocol=2)  # what a module without fp8 state saves


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to write: `leading` are its stacked dimensions, one chunk each at least; `cuts` cut rows of the rest."""

    name: str
    dtype: str
    leading: Shape
    logical: Shape
    cuts: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        return (*self.leading, *self.logical)


def _row_ranges(planned: Planned) -> list[tuple[int, int]]:
    """Row ranges of the logical tensor: at the cuts, and finer where a chunk would exceed MAX_CHUNK."""
    rows = planned.logical[0]
    row_bytes = prod(planned.logical[1:]) * BY_NAME[planned.dtype].itemsize
    step = max(1, MAX_CHUNK // max(1, row_bytes))
    edges = [0, *planned.cuts, rows]
    return [
        (start, min(start + step, stop))
        for begin, stop in itertools.pairwise(edges)
        for start in range(begin, stop, step)
    ]


class _Files:
    """Hands out addresses in `__0_<k>.distcp` files of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.files: list[tuple[str, int]] = [("__0_0.distcp", 0)]

    def room(self, size: int) -> tuple[int, int]:
        """(file, offset) where `size` bytes have room, in a new file if need be."""
        used = self.files[-1][1]
        if used and used + size > self.limit:
            self.files.append((f"__0_{len(self.files)}.distcp", 0))
            used = 0
        return len(self.files) - 1, used

    def take(self, size: int) -> None:
        """Bytes of the last file are handed out."""
        name, used = self.files[-1]
        self.files[-1] = (name, used + size)


Phases = Callable[[str, Shape, int], int | None]


def _no_phase(name: str, index: Shape, row: int) -> None:
    """Nothing is known of where a tensor's bytes come from."""


def lay_out(
    tensors: list[Planned],
    objects: list[str],
    common: Mapping[str, Any],
    max_file: int,
    aliases: Mapping[str, str] | None = None,
    phases: Phases = _no_phase,
) -> Image:
    """Every byte of a directory that holds `tensors` and `[None]` objects under the names `objects`.

    `aliases` are further names -> the tensor whose bytes they share. `phases(name, index, row)` is the source offset of the
    first byte of that row, or None: payloads keep its place within a page, which the kernel copies fastest.
    """
    files = _Files(max_file)
    image = Image([], [], {})
    entries = [_place(planned, files, image, phases) for planned in tensors]
    placed = {entry.name: entry for entry in entries}
    entries += [replace(placed[name], name=alias) for alias, name in (aliases or {}).items()]
    state = object_frame(EXTRA_STATE_NONE)
    number, offset = files.room(len(state))
    files.take(len(state))
    image.literals.append(Literal(number, offset, state))
    place = Stored(files.files[number][0], offset, len(state))
    image.files = files.files
    image.small_files = {
        ".metadata": serialise(entries, dict.fromkeys(objects, place)),
        "metadata.json": json.dumps(SHARDED_BACKEND).encode(),
        "common.pt": object_frame(pickle.dumps(dict(common), protocol=2)),
    }
    return image


class _Piece(NamedTuple):
    """A range of rows that becomes a chunk at every index on the leading dimensions."""

    row: int
    origin: Shape  # without the index
    shape: Shape
    nbytes: int


def _pieces(planned: Planned) -> list[_Piece]:
    zeros, ones = (0,) * (len(planned.logical) - 1), (1,) * len(planned.leading)
    columns = planned.logical[1:]
    row_bytes = prod(columns) * BY_NAME[planned.dtype].itemsize
    return [
        _Piece(start, (start, *zeros), (*ones, stop - start, *columns), (stop - start) * row_bytes)
        for start, stop in _row_ranges(planned)
    ]


def _place(planned: Planned, files: _Files, image: Image, phases: Phases) -> Entry:
    boxes, chunks = [], []
    literals = image.literals
    pieces = _pieces(planned)
    for index in positions(planned.leading):
        for piece in pieces:
            number, offset = files.room(piece.nbytes + 2 * PAGE)
            frame = tensor_frame(planned.dtype, piece.shape, offset, phases(planned.name, index, piece.row))
            payload = offset + len(frame.head) + frame.gap
            size = frame.size
            files.take(size)
            literals += (
                Literal(number, offset, frame.head, frame.gap),
                Literal(number, payload + frame.payload, frame.tail),
            )
            origin = index + piece.origin
            chunks.append(Chunk(number, payload, origin, piece.shape))
            boxes.append(Box(origin, piece.shape, Stored(files.files[number][0], offset, size)))
    image.tensors[planned.name] = Tensor(planned.name, planned.dtype, planned.shape, tuple(chunks))
    return Entry(planned.name, planned.dtype, planned.shape, tuple(boxes))


def common_state(arguments: Mapping[str, Any], per_layer: bool) -> dict[str, Any]:
    """What Megatron, slime and Megatron-Bridge read of `common.pt`; `args` is a Namespace of plain values."""
    content = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if per_layer:
        content["non_homogeneous_layers"] = True
    return {
        "args": argparse.Namespace(**arguments),
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": 1,
        "num_floating_point_operations_so_far": 0,
        "content_metadata": content,
    }
