"""Random tensors in random chunks, a rule between two sides, and what numpy says the outcome is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from ckpt_tools.engine import execute as execute_module
from ckpt_tools.engine import program as program_module
from ckpt_tools.engine.moves import Side, link
from ckpt_tools.engine.program import Program
from ckpt_tools.mapping.rules import Axis, Naming, Rule, Spelling, Table, expand, stored_shape
from ckpt_tools.stores.base import Chunk, Image, Literal, Tensor
from tests.mapping.statements import arrangements, cuts, fuse

Shape = tuple[int, ...]
Array = np.ndarray
NUMPY = {"U16": np.uint16, "U8": np.uint8, "I64": np.int64, "F32": np.float32}


@contextlib.contextmanager
def small_limits(threads: int = 2) -> Iterator[None]:
    """Limits so small that tiny tensors take every path: split literals, full gathers, pieces, tiles of rows and columns."""
    with (
        mock.patch.multiple(program_module, SMALL=8, GATHER=56, PIECE=24),
        mock.patch.multiple(execute_module, BUFFER=64, TRANSFORM=64, THREADS=threads),
    ):
        yield


@st.composite
def tilings(draw: st.DrawFn, shape: Shape) -> list[tuple[Shape, Shape]]:
    """(origin, shape) boxes that tile `shape`: now and then cut along one dimension, each half cut again on its own."""
    boxes, done = [((0,) * len(shape), shape)], []
    while boxes:
        origin, box = boxes.pop()
        wide = [d for d, n in enumerate(box) if n > 1]
        if not wide or len(done) > 8 or not draw(st.booleans()):
            done.append((origin, box))
            continue
        d = draw(st.sampled_from(wide))
        for start, stop in draw(cuts(box[d])):
            low, size = list(origin), list(box)
            low[d], size[d] = origin[d] + start, stop - start
            boxes.append((tuple(low), tuple(size)))
    return draw(st.permutations(done))


@dataclass
class Files:
    """Addresses in files: chunks one after another with holes between them, of which every byte stays zero."""

    sizes: list[int] = field(default_factory=lambda: [0])
    chunks: dict[str, Tensor] = field(default_factory=dict)

    def place(self, name: str, dtype: str, shape: Shape, tiling: Sequence[tuple[Shape, Shape]], new: bool) -> None:
        if new:
            self.sizes.append(0)
        placed = []
        for origin, box in tiling:
            placed.append(Chunk(len(self.sizes) - 1, self.sizes[-1], origin, box))
            self.sizes[-1] += prod(box) * np.dtype(NUMPY[dtype]).itemsize + 3 * (len(placed) % 2)
        self.chunks[name] = Tensor(name, dtype, shape, tuple(placed))


def window(box: tuple[Shape, Shape]) -> tuple[slice, ...]:
    return tuple(slice(start, start + n) for start, n in zip(*box, strict=True))


def written(files: Files, arrays: Mapping[str, Array], root: Path) -> list[Path]:
    """Files with these arrays at their addresses."""
    data = [bytearray(size) for size in files.sizes]
    for name, tensor in files.chunks.items():
        for chunk in tensor.chunks:
            run = arrays[name][window((chunk.origin, chunk.shape))].tobytes()
            data[chunk.file][chunk.offset : chunk.offset + len(run)] = run
    paths = [root / f"source-{number}" for number in range(len(data))]
    for path, content in zip(paths, data, strict=True):
        path.write_bytes(content)
    return paths


def read_back(tensors: Mapping[str, Tensor], paths: Sequence[Path]) -> dict[str, Array]:
    data = [path.read_bytes() for path in paths]
    found = {}
    for name, tensor in tensors.items():
        dtype = NUMPY[tensor.dtype]
        array = found[name] = np.zeros(tensor.shape, dtype)
        for chunk in tensor.chunks:
            flat = np.frombuffer(data[chunk.file], dtype, prod(chunk.shape), chunk.offset)
            array[window((chunk.origin, chunk.shape))] = flat.reshape(chunk.shape)
    return found


@dataclass
class Case:
    """One conversion: the rule, both sides' tensors as numpy states them, and random addresses for all of them."""

    rule: Rule
    stacked: bool
    hf: dict[str, Array]
    megatron: dict[str, Array]
    hf_files: Files
    megatron_files: Files

    def program(self, root: Path, to_megatron: bool) -> Program:
        source, arrays = (self.hf_files, self.hf) if to_megatron else (self.megatron_files, self.megatron)
        target = self.megatron_files if to_megatron else self.hf_files
        rows = expand(Table((self.rule,)), Naming(self.stacked))
        moves = list(link(rows, Side(self.hf_files.chunks), Side(self.megatron_files.chunks), to_megatron))
        sizes = [(f"sub/target-{number}", size) for number, size in enumerate(target.sizes)]
        return Program(written(source, arrays, root), Image(sizes, [], target.chunks), moves)

    def padding_bytes(self, to_megatron: bool) -> int:
        whole = self.rule.whole_shape
        rows = prod(len(axis.megatron) for axis in self.rule.axes)
        row = prod(n for d, n in enumerate(whole) if d != self.rule.arrangement.axis)
        return 2 * rows * row * self.rule.arrangement.padding * to_megatron


LAYER, EXPERT = Axis("layer", range(2), range(5, 7)), Axis("expert", range(3))
AXES: list[tuple[Axis, ...]] = [(), (LAYER,), (LAYER, EXPERT)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to two axes, spelled or leading on either side, so that stored tensors have up to three dimensions or so."""
    axes = draw(st.sampled_from(AXES))
    arrangement, shapes = draw(arrangements(dims=draw(st.integers(1, 3 - len(axes)))))
    stacked = draw(st.booleans())
    spelled = [axis for axis in axes if draw(st.booleans())]
    hf_names = tuple("".join(["part", str(n), *(f".{{{axis.name}}}" for axis in spelled)]) for n in range(len(shapes)))
    megatron_name = "whole" + (".{layer}" if axes else "")
    pieces: tuple[tuple[str, int], ...] = ()
    if arrangement.axis == 0 and draw(st.booleans()):
        pieces = tuple((f"p{n}", stop - start) for n, (start, stop) in enumerate(draw(cuts(arrangement.length))))
    rule = Rule((Spelling(megatron_name),), hf_names, tuple(shapes), arrangement, axes, pieces=pieces)
    hf, megatron = _arrays(rule, stacked, draw)
    sides = [Files(), Files()]
    for files, arrays in zip(sides, (hf, megatron), strict=True):
        for name, array in arrays.items():
            files.place(name, "U16", array.shape, draw(tilings(array.shape)), draw(st.booleans()))
    return Case(rule, stacked, hf, megatron, *sides)


def _arrays(rule: Rule, stacked: bool, draw: Callable[[st.SearchStrategy[int]], int]) -> tuple[dict[str, Array], ...]:
    """Random parts under their stored names, and the wholes made of them with numpy."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    hf: dict[str, Array] = {}
    megatron: dict[str, Array] = {}
    leading = [axis for axis in rule.axes if stacked or axis.name != "layer"]
    for positions in product(*(range(len(axis.megatron)) for axis in rule.axes)):
        at = dict(zip((axis.name for axis in rule.axes), positions, strict=True))
        parts = []
        for template, shape in zip(rule.hf, rule.shapes, strict=True):
            name = template.format(**{axis.name: axis.hf_values[at[axis.name]] for axis in rule.axes})
            packed = tuple(at[axis.name] for axis in rule.axes if f"{{{axis.name}}}" not in template)
            stored = hf.setdefault(name, np.zeros(stored_shape(template, rule.axes, shape, hf=True), np.uint16))
            stored[packed] = random.integers(1, 60000, shape)
            parts.append(stored[packed])
        name = "whole" if stacked or not rule.axes else f"whole.{at['layer']}"
        whole, position = fuse(rule.arrangement, parts), 0
        for suffix, logical in rule.stored:
            shape = (*(len(axis.megatron) for axis in leading), *logical)
            stored = megatron.setdefault(name + suffix, np.zeros(shape, np.uint16))
            rows = logical[0] if rule.pieces else whole.shape[0]
            stored[tuple(at[axis.name] for axis in leading)] = whole[position : position + rows]
            position += rows
    return hf, megatron


def literals_of(files: Files) -> list[Literal]:
    """A literal in front of every chunk of a destination is what headers look like; here at the end of each file."""
    found = []
    for number, size in enumerate(files.sizes):
        data, zeros = bytes(range(1, 1 + 37)), 11
        found.append(Literal(number, size, data, zeros))
        files.sizes[number] += len(data) + zeros
    return found
