"""Parts that are stored encoded: transposed matrices and mxfp4, one matrix at a time (gpt-oss experts).

mxfp4 (OCP Microscaling, e2m1 with e8m0 scales): a byte holds two values, the low nibble first; 32 values share a scale
byte s, and a value is its e2m1 number times 2^(s - 127), which bfloat16 holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..mapping.arrangement import Shape
from ..mapping.rules import Bound, decoded_rows, stored_shape
from ..stores.base import Chunk, Image, Tensor
from ..stores.dtypes import BY_NAME
from .cast import bytes_of, torch_dtype
from .files import Handles, read_exactly, write_exactly
from .moves import Move, Side, link
from .view import View

if TYPE_CHECKING:
    import torch

TRANSPOSED, MXFP4 = "transposed", "mxfp4"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127
BAND = 256  # rows decoded at a time


class Stored(NamedTuple):
    """One encoded matrix: where its bytes lie, and those of its scales."""

    kind: str
    dtype: str
    file: int
    offset: int
    shape: Shape
    scale_file: int = -1
    scale_offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the values; the scales are one byte to sixteen of them."""
        return prod(self.shape) * BY_NAME[self.dtype].itemsize


class Take(NamedTuple):
    """Rows `start..stop` (every `step`-th) of the decoded matrix, to a place of a destination file."""

    start: int
    stop: int
    step: int
    file: int
    offset: int

    @property
    def rows(self) -> int:
        return -(-(self.stop - self.start) // self.step)


class Decode(NamedTuple):
    """Decode one matrix and write its rows; `row_bytes` of the target dtype."""

    stored: Stored
    target: str
    takes: tuple[Take, ...]
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return sum(take.rows for take in self.takes) * self.row_bytes

    @property
    def nbytes_read(self) -> int:
        return self.stored.nbytes


class Encode(NamedTuple):
    """Build one matrix `[rows, columns]` from moves and write it transposed."""

    tensor: Tensor
    moves: list[Move]
    start: int
    rows: int
    columns: int
    file: int
    offset: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.tensor.itemsize

    @property
    def nbytes_read(self) -> int:
        return self.nbytes


def decode_tasks(rows: Iterable[Bound], hf: dict[str, Tensor], megatron: Side) -> Iterator[Decode]:
    """A task per encoded matrix of the table; the destination's chunks hold whole rows."""
    for row in rows:
        if row.rule.codec is None:
            continue
        whole = megatron.tensors[row.megatron.name]
        columns = row.rule.whole_shape[-1]
        takes = tuple(_takes(row, megatron.chunks(row.megatron), columns * whole.itemsize))
        yield Decode(stored_matrix(row, hf), whole.dtype, takes, columns * whole.itemsize)


def stored_matrix(row: Bound, hf: dict[str, Tensor]) -> Stored:
    """Where the encoded matrix of a row lies."""
    codec = row.rule.codec
    assert codec is not None
    slot = row.hf[0]
    tensor = hf[slot.name]
    (chunk,) = tensor.chunks
    index = slot.place[0] if slot.place else 0
    at = chunk.offset + index * prod(codec.stored) * tensor.itemsize
    if codec.companion is None:
        return Stored(codec.kind, tensor.dtype, chunk.file, at, codec.stored)
    beside = hf[companion_name(row)]
    (scales,) = beside.chunks
    return Stored(
        codec.kind,
        tensor.dtype,
        chunk.file,
        at,
        codec.stored,
        scales.file,
        scales.offset + index * prod(codec.companion[1]),
    )


def companion_name(row: Bound) -> str:
    """The scales' name: the companion template where the part's own template is the slot's name."""
    codec = row.rule.codec
    assert codec is not None and codec.companion is not None
    template, own = codec.companion[0], row.rule.hf[0]
    suffix = own.split(".")[-1]
    return row.hf[0].name[: len(row.hf[0].name) - len(suffix)] + template.split(".")[-1]


def _takes(row: Bound, chunks: Sequence[Chunk], row_bytes: int) -> Iterator[Take]:
    position = 0
    for block in row.rule.arrangement.blocks:
        for chunk in chunks:
            low = max(position, chunk.origin[0])
            high = min(position + block.length, chunk.origin[0] + chunk.shape[0])
            if low < high:
                start = block.start + (low - position) * block.step
                stop = block.start + (high - 1 - position) * block.step + 1
                yield Take(start, stop, block.step, chunk.file, chunk.offset + (low - chunk.origin[0]) * row_bytes)
        position += block.length


def run_decode(task: Decode, sources: Handles, targets: Handles) -> None:
    for take, first, values in _decoded(task, sources):
        data = bytes_of(values.to(torch_dtype(task.target)))
        write_exactly(targets[take.file], data, take.offset + first * task.row_bytes)


def _decoded(task: Decode, sources: Handles) -> Iterator[tuple[Take, int, torch.Tensor]]:
    """(take, its row number, decoded rows) in bands."""
    matrix = Matrix(task.stored, sources)
    for take in task.takes:
        for first in range(0, take.rows, BAND):
            stop = min(take.stop, take.start + (first + BAND) * take.step)
            yield take, first, matrix.rows(take.start + first * take.step, stop, take.step)


class Matrix:
    """An encoded matrix in memory, its rows decoded on demand."""

    def __init__(self, stored: Stored, sources: Handles) -> None:
        import torch

        def read(file: int, offset: int, size: int) -> torch.Tensor:
            data = bytearray(size)
            read_exactly(sources, file, memoryview(data), offset)
            return torch.frombuffer(data, dtype=torch.uint8)

        self.kind = stored.kind
        self.data = read(stored.file, stored.offset, stored.nbytes).view(torch_dtype(stored.dtype))
        self.data = self.data.view(stored.shape)
        self.scales = None
        if stored.scale_file >= 0:
            self.scales = read(stored.scale_file, stored.scale_offset, prod(stored.shape[:-1])).view(stored.shape[:-1])

    def rows(self, start: int, stop: int, step: int) -> torch.Tensor:
        """Rows `start..stop` by `step` of the decoded matrix."""
        if self.kind == TRANSPOSED:
            return self.data[:, start:stop:step].t().contiguous()
        assert self.scales is not None
        return mxfp4(self.data[start:stop:step], self.scales[start:stop:step])


def mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bfloat16 `[rows, groups * 32]` from bytes `[rows, groups, 16]` and scale bytes `[rows, groups]`."""
    import torch

    table = torch.tensor((*E2M1, *(-value for value in E2M1)), dtype=torch.float32)
    low, high = (table[nibble.int()] for nibble in (blocks & 0x0F, blocks >> 4))
    values = torch.stack((low, high), dim=-1).flatten(-2)
    made = torch.ldexp(values, (scales.int() - BIAS).unsqueeze(-1))
    return made.flatten(-2).to(torch.bfloat16)


def encode_tasks(rows: list[Bound], image: Image, megatron: Side) -> Iterator[Encode]:
    """A task per matrix that the destination stores transposed; its rows are linked into a stand-in tensor first."""
    coded = [row for row in rows if row.rule.codec is not None]
    virtual = stand_ins(coded, megatron)
    names = list(virtual)
    moves: dict[str, list[Move]] = {name: [] for name in names}
    for move in link(decoded_rows(coded), Side(virtual), megatron, to_megatron=False):
        moves[names[move.target_file]].append(move)
    for row, plain in zip(coded, decoded_rows(coded), strict=True):
        slot = plain.hf[0]
        count, columns = row.rule.shapes[0]
        (chunk,) = image.tensors[row.hf[0].name].chunks
        size = count * columns * virtual[slot.name].itemsize
        at = size * (slot.place[0] if slot.place else 0)
        mine = [move for move in moves[slot.name] if at <= move.target < at + size]
        yield Encode(virtual[slot.name], mine, at, count, columns, chunk.file, chunk.offset + at)


def stand_ins(coded: list[Bound], megatron: Side) -> dict[str, Tensor]:
    """Decoded tensors that no file holds, each numbered as a file of its own."""
    found: dict[str, Tensor] = {}
    for row in decoded_rows(coded):
        name, dtype = row.hf[0].name, megatron.tensors[row.megatron.name].dtype
        if name not in found:
            shape = stored_shape(row.rule.hf[0], row.rule.axes, row.rule.shapes[0], hf=True)
            found[name] = Tensor(name, dtype, shape, (Chunk(len(found), 0, (0,) * len(shape), shape),))
    return found


class DecodedView(View):
    """A tensor of encoded matrices `[count, rows, columns]`, decoded matrix by matrix when read."""

    def __init__(self, name: str, matrices: list[Stored], shape: Shape, handles: Handles) -> None:
        super().__init__(Tensor(name, "BF16", (len(matrices), *shape), ()), [], handles)
        self.matrices = matrices

    def read(self, start: int, stop: int) -> bytearray:
        size = prod(self.tensor.shape[1:]) * self.tensor.itemsize
        made = bytearray()
        for stored in self.matrices[start // size : stop // size]:
            rows = Matrix(stored, self.handles).rows(0, self.tensor.shape[1], 1)
            made += bytes_of(rows.to(torch_dtype(self.tensor.dtype)))
        return made


def run_encode(task: Encode, sources: Handles, targets: Handles) -> None:
    import torch

    data = View(task.tensor, task.moves, sources).read(task.start, task.start + task.nbytes)
    matrix = torch.frombuffer(data, dtype=torch_dtype(task.tensor.dtype)).view(task.rows, task.columns)
    write_exactly(targets[task.file], bytes_of(matrix.t()), task.offset)
