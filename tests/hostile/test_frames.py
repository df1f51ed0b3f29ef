"""Frames with noise in them, addresses beyond the file, pickles that describe no tensor: one clear error."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError
from ckpt_tools.stores.torch_dist import frames
from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.frames import tensor_frame
from ckpt_tools.stores.torch_dist.payloads import read_object, read_payload
from ckpt_tools.stores.torch_dist.reader import locate, open_checkpoint
from tests.stores.make import EMBEDDING, torch_dist


@pytest.mark.parametrize("where", ["start", "middle", "end"])
def test_a_damaged_frame(where: str, tmp_path: Path) -> None:
    root = torch_dist(tmp_path)
    checkpoint = open_checkpoint(root)
    stored = checkpoint.contents.tensors[EMBEDDING.name].boxes[0].stored
    at = {"start": 0, "middle": stored.length // 2, "end": stored.length - 30}[where]
    with (root / stored.file).open("r+b") as stream:
        stream.seek(stored.offset + at)
        stream.write(b"\xee" * 30)
    if where == "middle":
        locate(checkpoint, {EMBEDDING.name})  # payload bytes carry no check
        return
    with pytest.raises(CkptError) as caught:
        locate(checkpoint, {EMBEDDING.name})
    assert caught.value.findings[0].code in ("frame-damaged", "pickle-unreadable")
    assert EMBEDDING.name in caught.value.findings[0].where


def whole(shape: tuple[int, ...]) -> bytes:
    frame = tensor_frame("BF16", shape)
    return frame.head + bytes(frame.gap) + bytes(frame.payload) + frame.tail


SHORT, LONG = whole((3, 4)), whole((64, 64))  # read in one piece; its ends are read apart
RECORDS = 1200  # bytes at either end of the long one, in which everything but its payload lies


@settings(max_examples=500)
@given(
    frame=st.sampled_from([SHORT, LONG]),
    at=st.integers(0, RECORDS),
    behind=st.booleans(),
    junk=st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * n for n in (2, 4, 8)]),
    cut=st.integers(0, 40),
)
def test_a_frame_with_noise_in_it_is_one_clear_error_or_right(
    frame: bytes, at: int, behind: bool, junk: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(frame)
    at = len(frame) - 1 - at if behind else at
    at = min(max(at, 0), len(frame) - 8)
    data[at : at + len(junk)] = junk
    data = data[cut:]
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(data)
    with path.open("rb") as stream:
        try:
            found = read_payload(stream.fileno(), 0, len(data), "here")
            assert 0 <= found.offset <= len(data)
        except CkptError as problem:
            assert all(finding.where == "here" for finding in problem.findings)
        try:
            read_object(stream.fileno(), 0, len(data), "here")
        except CkptError as problem:
            assert all(finding.where == "here" for finding in problem.findings)


def test_zip64_addresses_beyond_the_file(tmp_path: Path) -> None:
    at = SHORT.rindex(b"PK\x05\x06")
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    for address in (2**63, 2**64 - 1, 10**6):
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, address, 1)
        (tmp_path / "frame").write_bytes(SHORT[:at] + locator + end)
        with (tmp_path / "frame").open("rb") as stream, pytest.raises(CkptError) as caught:
            read_payload(stream.fileno(), 0, at + len(locator) + len(end), "here")
        assert caught.value.findings[0].code == "frame-damaged"


def test_a_directory_that_would_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of holes, in which a directory of 3 GB may well lie."""
    pread = os.pread

    def small(fd: int, size: int, at: int) -> bytes:
        assert size < 1 << 27
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", small)
    size = 5 << 30
    end = struct.pack(frames.END, b"PK\x05\x06", 0, 0, 7, 7, 3 << 30, 64, 0)
    with (tmp_path / "frame").open("wb") as stream:
        stream.seek(size - len(end))
        stream.write(end)
    with (tmp_path / "frame").open("rb") as stream, pytest.raises(CkptError) as caught:
        read_payload(stream.fileno(), 0, size, "here")
    assert caught.value.findings[0].code == "frame-damaged"


def tensor_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    storage = op.persistent(
        op.tuple_of((op.text("storage"), op.glob("torch", "FloatStorage"), op.text("0"), op.text("cpu"), op.integer(1)))
    )
    arguments = op.tuple_of((storage, op.integer(0), op.integers(shape), op.integers(strides)))
    return op.call(op.glob("torch._utils", "_rebuild_tensor_v2"), arguments)


ENDLESS = op.tuple_of([b"\x8b" + struct.pack("<i", 2000) + b"\x7f" * 2000])  # LONG4, 4800 digits
NOT_A_TENSOR = {
    "more elements than there can be": tensor_of((2**63,), (1,)),
    "a number that Python does not print": tensor_of((1,), (1,)).replace(op.integers((1,)), ENDLESS, 1),
    "as many dimensions as elements": tensor_of((1,) * 65, (1,) * 65),
    "an object": op.list_of([op.NONE]),
    "no arguments": op.call(op.glob("torch._utils", "_rebuild_tensor_v2"), op.EMPTY_TUPLE),
    "no storage": op.call(
        op.glob("torch._utils", "_rebuild_tensor_v2"),
        op.tuple_of((op.NONE, op.integer(0), op.EMPTY_TUPLE, op.EMPTY_TUPLE)),
    ),
    "text for a storage": op.call(
        op.glob("torch._utils", "_rebuild_tensor_v2"),
        op.tuple_of(
            (op.persistent(op.tuple_of((op.text("storage"), op.text("x")))), op.integer(0), *[op.EMPTY_TUPLE] * 2)
        ),
    ),
    "text for a shape": op.call(
        op.glob("torch._utils", "_rebuild_tensor_v2"),
        op.tuple_of(
            (
                op.persistent(op.tuple_of((op.text("storage"), op.glob("torch", "FloatStorage")))),
                op.integer(0),
                op.text("ab"),
                op.text("cd"),
            )
        ),
    ),
    "ranks that differ": op.call(
        op.glob("torch._utils", "_rebuild_tensor_v2"),
        op.tuple_of(
            (
                op.persistent(op.tuple_of((op.text("storage"), op.glob("torch", "FloatStorage")))),
                op.integer(0),
                op.integers((1, 2)),
                op.integers((1,)),
            )
        ),
    ),
}


@pytest.mark.parametrize("name", NOT_A_TENSOR)
def test_a_frame_that_holds_no_tensor(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames._tensor_head.cache_clear()
    monkeypatch.setattr(frames, "_tensor_pickle", lambda *_: op.program(NOT_A_TENSOR[name]))
    frame = tensor_frame("F32", (2,))
    frames._tensor_head.cache_clear()
    (tmp_path / "frame").write_bytes(frame.head + bytes(frame.gap + 8) + frame.tail)
    with (tmp_path / "frame").open("rb") as stream, pytest.raises(CkptError) as caught:
        read_payload(stream.fileno(), 0, frame.size, "here")
    assert (caught.value.findings[0].code, caught.value.findings[0].where) == ("frame-damaged", "here")
