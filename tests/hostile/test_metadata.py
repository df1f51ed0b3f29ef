"""`.metadata` that is cut off, describes nothing possible, or is something else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.metadata import DCP, Box, Entry, Stored, parse
from ckpt_tools.stores.torch_dist.reader import METADATA
from tests.stores.make import torch_dist

from .directories import metadata_of, refused


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_truncated_metadata(part: float, tmp_path: Path) -> None:
    data = (torch_dist(tmp_path) / METADATA).read_bytes()
    (tmp_path / METADATA).write_bytes(data[: int(part * len(data))])
    finding = refused(tmp_path)
    assert (finding.code, finding.where) == ("pickle-unreadable", str(tmp_path / METADATA))


def test_the_undisturbed_metadata_is_fine() -> None:
    place = Stored("__0_0.distcp", 0, 10)
    assert parse(metadata_of(), "")[0].tensors == {"t": Entry("t", "BF16", (4,), (Box((0,), (4,), place),))}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fqn", op.text("another")),
        ("fqn", op.list_of([])),
        ("offset", op.integers((1,))),
        ("offset", op.NONE),
        ("relative_path", op.text("/etc/passwd")),
        ("relative_path", op.text("../../etc/passwd")),
        ("relative_path", op.NONE),
        ("position", b"J" + struct.pack("<i", -5)),
        ("position", op.text("x")),
        ("length", b"J" + struct.pack("<i", -5)),
        ("length", op.NONE),
        ("size", b"J" + struct.pack("<i", -5)),
        ("size", op.integers((4, 4))),
        ("size", op.tuple_of((b"J" + struct.pack("<i", -4),))),
        ("sizes", op.integers((4, 1))),
        ("sizes", op.tuple_of((op.text("4"),))),
        ("offsets", op.integers((3,))),
        ("dtype", op.glob("torch", "complex64")),
        ("dtype", op.NONE),
    ],
)
def test_metadata_that_describes_nothing_possible(field: str, value: bytes, tmp_path: Path) -> None:
    (torch_dist(tmp_path) / METADATA).write_bytes(metadata_of(**{field: value}))
    finding = refused(tmp_path)
    assert finding.code in ("metadata-damaged", "pickle-unreadable")
    assert finding.where == str(tmp_path / METADATA)


@pytest.mark.parametrize(
    "value", [op.NONE, op.integer(5), op.dict_of([]), op.instance(op.glob(DCP, "Metadata"), op.dict_of([]))]
)
def test_metadata_that_is_something_else(value: bytes, tmp_path: Path) -> None:
    (torch_dist(tmp_path) / METADATA).write_bytes(op.program(value))
    assert refused(tmp_path).code == "metadata-damaged"
