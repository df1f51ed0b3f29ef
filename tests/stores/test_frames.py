"""Frames against torch.save and torch.load."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError
from ckpt_tools.stores.dtypes import DTYPES
from ckpt_tools.stores.torch_dist import frames
from ckpt_tools.stores.torch_dist.frames import object_frame, tensor_frame
from ckpt_tools.stores.torch_dist.payloads import Payload, read_object, read_payload

from .make import TORCH, random_tensor, raw

ALL = [dtype.name for dtype in DTYPES]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def framed(tensor: torch.Tensor, dtype: str, at: int = 0, phase: int | None = None) -> bytes:
    frame = tensor_frame(dtype, tuple(tensor.shape), at, phase)
    return frame.head + bytes(frame.gap) + raw(tensor) + frame.tail


def located(data: bytes, before: int = 0) -> Payload:
    """`read_payload` of a frame that lies in the middle of a file."""
    with tempfile.TemporaryFile() as stream:
        stream.write(b"\xff" * before + data + b"\xff" * 9)
        stream.flush()
        return read_payload(stream.fileno(), before, len(data), "here")


def saved(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


@given(dtype=st.sampled_from(ALL), shape=shapes)
def test_torch_loads_our_frames(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(dtype, shape)
    data = framed(tensor, dtype)
    frame = tensor_frame(dtype, shape)
    assert frame.payload == len(raw(tensor))
    found = torch.load(io.BytesIO(data), weights_only=True)
    assert (found.dtype, found.shape, found.is_contiguous()) == (tensor.dtype, tensor.shape, True)
    assert raw(found) == raw(tensor)
    assert (len(frame.head) + frame.gap) % frames.ALIGNMENT == 0


@pytest.mark.parametrize("dtype", ALL)
def test_torch_maps_our_frames_into_memory(dtype: str, tmp_path: Path) -> None:
    tensor = random_tensor(dtype, (6, 70))
    (tmp_path / "frame").write_bytes(framed(tensor, dtype))
    assert raw(torch.load(tmp_path / "frame", weights_only=True, mmap=True)) == raw(tensor)


@given(dtype=st.sampled_from(ALL), shape=shapes, before=st.sampled_from([0, 1, 4096]), ours=st.booleans())
def test_we_find_the_payload(dtype: str, shape: tuple[int, ...], before: int, ours: bool) -> None:
    tensor = random_tensor(dtype, shape)
    data = framed(tensor, dtype) if ours else saved(tensor)
    payload = located(data, before)
    assert (payload.dtype, payload.shape) == (dtype, shape)
    assert (b"\xff" * before + data)[payload.offset : payload.offset + len(raw(tensor))] == raw(tensor)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "U16"])
def test_a_view_into_a_larger_storage(dtype: str) -> None:
    whole = random_tensor(dtype, (9, 4))
    data = saved(whole[3:5])
    payload = located(data)
    assert payload[:2] == (dtype, (2, 4))
    assert data[payload.offset : payload.offset + len(raw(whole[3:5]))] == raw(whole[3:5])


@pytest.mark.parametrize("tensor", [torch.rand(3, 4).T, torch.rand(4, 4)[:, :2], torch.rand(1, 3).expand(5, 3)])
def test_strided_tensors_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(CkptError) as caught:
        located(saved(tensor))
    assert caught.value.findings[0].code == "chunk-strided"
    assert caught.value.findings[0].where == "here"
    assert str(tuple(tensor.stride())) in caught.value.findings[0].actual


def test_strides_of_single_rows_do_not_matter() -> None:
    assert located(saved(torch.rand(4, 3)[:, :1].T.contiguous().T[:1])).shape == (1, 1)
    assert located(saved(torch.rand(8, 3)[2:3, None])).shape == (1, 1, 3)


def test_a_parameter_is_its_tensor() -> None:
    parameter = torch.nn.Parameter(torch.rand(2, 3))
    data = saved(parameter)
    payload = located(data)
    assert data[payload.offset : payload.offset + 24] == raw(parameter.detach())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(protocol: int) -> None:
    assert located(saved(torch.rand(2, 3), pickle_protocol=protocol)).shape == (2, 3)


def test_zip64_records() -> None:
    """The reader meets 64-bit records where sizes and counts say so: the same frame, its directory widened by hand."""
    tensor = torch.rand(3, 3)
    data = widened(framed(tensor, "F32"))
    payload = located(data, 5)
    assert (payload.dtype, payload.shape) == ("F32", (3, 3))
    assert (b"\xff" * 5 + data)[payload.offset : payload.offset + 36] == raw(tensor)
    assert torch.equal(torch.load(io.BytesIO(data), weights_only=True), tensor)  # torch agrees that it is one


def widened(frame: bytes) -> bytes:
    """A frame whose central directory and end record are those of zip64."""
    *_, count, _size, start, _comment = struct.unpack(frames.END, frame[-22:])
    directory, position = b"", start
    for _ in range(count):
        fields = list(struct.unpack_from(frames.CENTRAL, frame, position))
        name = frame[position + 46 : position + 46 + fields[10]]
        extra = struct.pack("<2H3Q", 1, 24, fields[9], fields[8], fields[16])
        position += 46 + fields[10]
        fields[8] = fields[9] = fields[16] = frames.LIMIT
        fields[11] = len(extra)
        directory += struct.pack(frames.CENTRAL, *fields) + name + extra
    at = start + len(directory)
    wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at, 1)
    end = struct.pack(frames.END, b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, frames.LIMIT, frames.LIMIT, 0)
    return frame[:start] + directory + wide + locator + end


@pytest.mark.parametrize("writer", ["torch", "ours"])
def test_a_long_frame_costs_two_reads(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two ends; a model has tens of thousands of them."""
    tensor, reads = torch.rand(64, 64), []
    data = saved(tensor) if writer == "torch" else framed(tensor, "F32")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *where: reads.append(where) or pread(*where))
    payload = located(data, 5)
    assert (b"\xff" * 5 + data)[payload.offset : payload.offset + tensor.nbytes] == raw(tensor)
    assert len(reads) == 2


def test_a_frame_of_4_gib_is_refused() -> None:
    with pytest.raises(ValueError, match="zip64"):
        tensor_frame("U8", (1 << 32,))
    assert tensor_frame("U8", (1 << 31,)).payload == 1 << 31


@pytest.mark.parametrize("value", [[None], {"a": [1, 2.5, "x", None, True], (1, 2): b"raw"}, 2**70, []])
def test_objects(value: Any, tmp_path: Path) -> None:
    frame = object_frame(pickle.dumps(value, protocol=2))
    assert torch.load(io.BytesIO(frame), weights_only=True) == value
    for data in (frame, saved(value)):
        (tmp_path / "frame").write_bytes(b"\xff" * 7 + data)
        handle = os.open(tmp_path / "frame", os.O_RDONLY)
        try:
            assert read_object(handle, 7, len(data), "here") == (value, [])
        finally:
            os.close(handle)


def test_dtypes_match_torch() -> None:
    assert all(isinstance(dtype, torch.dtype) for dtype in TORCH.values())


@pytest.mark.parametrize(("at", "phase"), [(0, None), (7, None), (123, 1), (64, 77), (5000, 4095), (4090, 8)])
def test_a_payload_lies_where_it_was_asked_to(at: int, phase: int | None) -> None:
    """Any phase loads: torch copies the record out of the archive."""
    tensor = torch.arange(24, dtype=torch.bfloat16).view(2, 3, 4)
    frame = tensor_frame("BF16", (2, 3, 4), at, phase)
    start = at + len(frame.head) + frame.gap
    assert start % frames.ALIGNMENT == 0 if phase is None else start % frames.PAGE == phase
    assert torch.equal(torch.load(io.BytesIO(framed(tensor, "BF16", at, phase)), weights_only=True), tensor)
