"""torch-dist directories that lost something or lie: refused before a tensor byte is read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError, Finding
from ckpt_tools.stores.base import tile_exactly
from ckpt_tools.stores.torch_dist import frames
from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.frames import read_object, read_payload, tensor_frame
from ckpt_tools.stores.torch_dist.metadata import DCP, Box, Contents, Entry, Stored, parse
from ckpt_tools.stores.torch_dist.metadata_writer import serialise
from ckpt_tools.stores.torch_dist.reader import METADATA, locate, open_checkpoint
from tests.engine.world import tilings
from tests.stores.make import EMBEDDING, STACK, torch_dist

Change = Callable[[Contents], Contents]


def with_metadata(root: Path, change: Callable[[tuple[Box, ...]], tuple[Box, ...]], name: str = STACK.name) -> Path:
    """A directory whose `.metadata` says something else about one tensor."""
    torch_dist(root)
    contents = parse((root / METADATA).read_bytes(), "")[0]
    entry = contents.tensors[name]
    tensors = contents.tensors | {name: replace(entry, boxes=change(entry.boxes))}
    (root / METADATA).write_bytes(serialise(list(tensors.values()), contents.objects))
    return root


def only(root: Path) -> Finding:
    (finding,) = open_checkpoint(root).report.findings
    return finding


def refused(root: Path) -> Finding:
    with pytest.raises(CkptError) as caught:
        open_checkpoint(root)
    return caught.value.findings[0]


def test_a_sound_directory(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(torch_dist(tmp_path))
    assert checkpoint.report.findings == []
    locate(checkpoint, checkpoint.model_keys)
    assert len(checkpoint.tensors[STACK.name].chunks) == 6


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_truncated_metadata(part: float, tmp_path: Path) -> None:
    data = (torch_dist(tmp_path) / METADATA).read_bytes()
    (tmp_path / METADATA).write_bytes(data[: int(part * len(data))])
    finding = refused(tmp_path)
    assert (finding.code, finding.where) == ("pickle-unreadable", str(tmp_path / METADATA))


def test_a_missing_file(tmp_path: Path) -> None:
    torch_dist(tmp_path, max_file=1000)
    (tmp_path / "__0_1.distcp").unlink()
    finding = only(tmp_path)
    assert (finding.code, finding.where) == ("shard-missing", str(tmp_path / "__0_1.distcp"))
    assert "incomplete copy?" in finding.fix


def test_a_short_file(tmp_path: Path) -> None:
    path = torch_dist(tmp_path) / "__0_0.distcp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    finding = only(tmp_path)
    assert (finding.code, finding.where) == ("file-truncated", str(path))
    assert (finding.expected, finding.actual) == (f"at least {size:,} bytes", f"{size - 1:,} bytes")


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


def test_a_chunk_of_another_dtype(tmp_path: Path) -> None:
    torch_dist(tmp_path)
    contents = parse((tmp_path / METADATA).read_bytes(), "")[0]
    tensors = [replace(entry, dtype="F16") for entry in contents.tensors.values()]
    (tmp_path / METADATA).write_bytes(serialise(tensors, contents.objects))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CkptError) as caught:
        locate(checkpoint, {EMBEDDING.name, STACK.name})
    findings = caught.value.findings
    assert {finding.code for finding in findings} == {"chunk-differs"}
    assert len(findings) == 7
    assert (findings[-1].expected, findings[-1].actual) == ("F16 [10, 4]", "BF16 [10, 4]")
    assert EMBEDDING.name in findings[-1].where


def test_a_chunk_of_another_shape(tmp_path: Path) -> None:
    """Two chunks of one size exchanged their places; and one that points at another tensor's frame."""

    def exchanged(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        embedding = Stored("__0_0.distcp", boxes[-1].stored.offset + boxes[-1].stored.length, boxes[-1].stored.length)
        return (*boxes[:-1], boxes[-1]._replace(stored=embedding))

    checkpoint = open_checkpoint(with_metadata(tmp_path, exchanged))
    with pytest.raises(CkptError) as caught:
        locate(checkpoint, {STACK.name})
    assert caught.value.findings[0].code in ("chunk-differs", "frame-damaged")


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


FRAME = tensor_frame("BF16", (3, 4))
WHOLE = FRAME.head + bytes(FRAME.payload) + FRAME.tail


@settings(max_examples=300)
@given(
    at=st.integers(0, len(WHOLE) - 8),
    junk=st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * n for n in (2, 4, 8)]),
    cut=st.integers(0, 40),
    whole=st.booleans(),
)
def test_a_frame_with_noise_in_it_is_one_clear_error_or_right(
    at: int, junk: bytes, cut: int, whole: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(WHOLE)
    data[at : at + len(junk)] = junk
    data = data if whole else data[cut:]
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
    at = WHOLE.rindex(b"PK\x05\x06")
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    for address in (2**63, 2**64 - 1, 10**6):
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, address, 1)
        (tmp_path / "frame").write_bytes(WHOLE[:at] + locator + end)
        with (tmp_path / "frame").open("rb") as stream, pytest.raises(CkptError) as caught:
            read_payload(stream.fileno(), 0, at + len(locator) + len(end), "here")
        assert caught.value.findings[0].code == "frame-damaged"


NOT_A_TENSOR = {
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
    (tmp_path / "frame").write_bytes(frame.head + bytes(8) + frame.tail)
    with (tmp_path / "frame").open("rb") as stream, pytest.raises(CkptError) as caught:
        read_payload(stream.fileno(), 0, frame.size, "here")
    assert (caught.value.findings[0].code, caught.value.findings[0].where) == ("frame-damaged", "here")


def metadata_of(**info: bytes) -> bytes:
    """`.metadata` of one 1-D tensor, with some field replaced by another pickle program."""
    fields = {
        "fqn": op.text("t"),
        "offset": op.integers((0,)),
        "relative_path": op.text("__0_0.distcp"),
        "position": op.integer(0),
        "length": op.integer(10),
        "size": op.integers((4,)),
        "sizes": op.integers((4,)),
        "offsets": op.integers((0,)),
        "dtype": op.glob("torch", "bfloat16"),
    } | info
    properties = op.instance(
        op.glob(DCP, "TensorProperties"), op.tuple_of((fields["dtype"], op.NONE, op.FALSE, op.NONE, op.FALSE))
    )
    chunk = op.instance(
        op.glob(DCP, "ChunkStorageMetadata"), op.attributes(offsets=fields["offsets"], sizes=fields["sizes"])
    )
    tensor = op.instance(
        op.glob(DCP, "TensorStorageMetadata"),
        op.attributes(properties=properties, size=fields["size"], chunks=op.list_of([chunk])),
    )
    index = op.instance(op.glob(DCP, "MetadataIndex"), op.attributes(fqn=fields["fqn"], offset=fields["offset"]))
    place = op.instance(
        op.glob("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        op.attributes(relative_path=fields["relative_path"], offset=fields["position"], length=fields["length"]),
    )
    state = op.attributes(
        state_dict_metadata=op.dict_of([(op.text("t"), tensor)]), storage_data=op.dict_of([(index, place)])
    )
    return op.program(op.instance(op.glob(DCP, "Metadata"), state))


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


@pytest.mark.parametrize("data", [b"", b"\0" * 30, b"PK\x05\x06" + bytes(18), b"x" * 5000])
def test_a_common_state_that_is_no_archive(data: bytes, tmp_path: Path) -> None:
    (torch_dist(tmp_path) / "common.pt").write_bytes(data)
    finding = refused(tmp_path)
    assert (finding.code, finding.where) == ("frame-damaged", str(tmp_path / "common.pt"))


def test_no_common_state(tmp_path: Path) -> None:
    (torch_dist(tmp_path) / "common.pt").unlink()
    finding = only(tmp_path)
    assert (finding.code, finding.severity) == ("common-absent", "note")
