"""`.metadata` and whole directories against torch.distributed.checkpoint."""

from __future__ import annotations

import argparse
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ckpt_tools.stores.base import Chunk, tile_exactly
from ckpt_tools.stores.dtypes import DTYPES
from ckpt_tools.stores.torch_dist import layout
from ckpt_tools.stores.torch_dist.layout import Planned
from ckpt_tools.stores.torch_dist.metadata import Box, Contents, Entry, Stored, parse
from ckpt_tools.stores.torch_dist.metadata_writer import serialise
from ckpt_tools.stores.torch_dist.reader import COMMON_OBJECT, locate, open_checkpoint

from .make import EMBEDDING, STACK, STATES, TORCH, random_tensor, raw, torch_dist, write_image

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
sizes = st.integers(0, 2**40)
shapes = st.lists(sizes, max_size=3).map(tuple)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    shape = draw(shapes)
    same_rank = st.tuples(*[sizes] * len(shape))
    origins = draw(st.lists(same_rank, max_size=3, unique=True))
    boxes = tuple(Box(origin, draw(same_rank), draw(places())) for origin in origins)
    return Entry(draw(names), draw(st.sampled_from([d.name for d in DTYPES])), shape, boxes)


def places() -> st.SearchStrategy[Stored]:
    return st.builds(Stored, st.sampled_from(["__0_0.distcp", "__0_1.distcp", "ä b"]), sizes, sizes)


contents = st.tuples(
    st.lists(entries(), max_size=4, unique_by=lambda entry: entry.name), st.dictionaries(names, places(), max_size=3)
)


def by_hand(tensors: list[Entry], objects: dict[str, Stored]) -> Metadata:
    state: dict[str, Any] = {
        entry.name: TensorStorageMetadata(
            TensorProperties(dtype=TORCH[entry.dtype]),
            torch.Size(entry.shape),
            [ChunkStorageMetadata(torch.Size(box.origin), torch.Size(box.shape)) for box in entry.boxes],
        )
        for entry in tensors
    }
    state |= {name: BytesStorageMetadata() for name in objects}
    stored = {
        MetadataIndex(entry.name, torch.Size(box.origin)): _StorageInfo(*box.stored)
        for entry in tensors
        for box in entry.boxes
    }
    stored |= {MetadataIndex(name): _StorageInfo(*place) for name, place in objects.items()}
    return Metadata(state, None, stored, None, "1.0.0")


@given(content=contents)
def test_torch_reads_what_we_write(content: tuple[list[Entry], dict[str, Stored]]) -> None:
    tensors, objects = content
    objects = {f"object {name}": place for name, place in objects.items()}
    data = serialise(tensors, objects)
    found, expected = pickle.loads(data), by_hand(tensors, objects)
    assert found == expected
    assert list(found.state_dict_metadata) == list(expected.state_dict_metadata)
    again = parse(data, "here")[0]
    assert again == Contents({entry.name: entry for entry in tensors}, objects)


@given(content=contents, protocol=st.sampled_from([2, 4, 5]))
def test_we_read_what_torch_writes(content: tuple[list[Entry], dict[str, Stored]], protocol: int) -> None:
    tensors, objects = content
    objects = {f"object {name}": place for name, place in objects.items()}
    found, foreign = parse(pickle.dumps(by_hand(tensors, objects), protocol), "here")
    assert found == Contents({entry.name: entry for entry in tensors}, objects)
    assert all(name.startswith("torch.") for name in foreign)


STATE = {
    "decoder.weight": random_tensor("BF16", (6, 4), 1),
    "scale": random_tensor("F8_E4M3", (5,), 2),
    "step": torch.tensor(7),
    "object": "text",
    "nested": {"bias": random_tensor("F32", (3,), 3)},
}


@pytest.fixture
def by_torch(tmp_path: Path) -> Path:
    dcp.save(dict(STATE), checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def test_a_directory_written_by_torch(by_torch: Path) -> None:
    checkpoint = open_checkpoint(by_torch)
    assert [f.code for f in checkpoint.report.findings] == ["common-absent"]
    assert checkpoint.contents.objects.keys() == {"object"}
    expected = {name: value for name, value in STATE.items() if isinstance(value, torch.Tensor)}
    expected["nested.bias"] = STATE["nested"]["bias"]  # type: ignore[index]
    assert checkpoint.contents.tensors.keys() == expected.keys()
    locate(checkpoint, set(expected))
    for name, tensor in expected.items():
        (chunk,) = checkpoint.tensors[name].chunks
        data = checkpoint.files[chunk.file].read_bytes()
        assert data[chunk.offset : chunk.offset + tensor.nbytes] == raw(tensor)


def planned(draw: st.DrawFn, number: int) -> Planned:
    logical = (draw(st.integers(1, 6)), *draw(st.lists(st.integers(1, 4), max_size=2)))
    cuts = sorted(draw(st.sets(st.integers(1, logical[0] - 1), max_size=2))) if logical[0] > 1 else []
    dtype = draw(st.sampled_from([d.name for d in DTYPES]))
    leading = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    return Planned(f"decoder.t{number}.weight", dtype, leading, logical, tuple(cuts))


@settings(max_examples=12)
@given(data=st.data(), max_file=st.sampled_from([1, 2000, 1 << 30]), max_chunk=st.sampled_from([1, 40, 1 << 30]))
def test_torch_loads_a_directory_that_we_lay_out(
    data: st.DataObject, max_file: int, max_chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random tensors, cuts and limits: dcp.load gives back the bytes, and so does our own reader."""
    tensors = [data.draw(st.composite(planned)(n)) for n in range(data.draw(st.integers(1, 3)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MAX_CHUNK", max_chunk)
        image = layout.lay_out(tensors, STATES, {}, max_file)
    values = {p.name: random_tensor(p.dtype, p.shape, n) for n, p in enumerate(tensors)}
    root = write_image(image, tmp_path_factory.mktemp("dcp"))
    for name, tensor in image.tensors.items():
        for chunk in tensor.chunks:
            with (root / image.files[chunk.file][0]).open("r+b") as stream:
                stream.seek(chunk.offset)
                stream.write(raw(values[name][window(chunk)]))
    loaded = {name: torch.empty_like(value) for name, value in values.items()}
    dcp.load(loaded, checkpoint_id=root, no_dist=True)
    assert {name: raw(value) for name, value in loaded.items()} == {name: raw(value) for name, value in values.items()}
    checkpoint = open_checkpoint(root)
    assert checkpoint.report.findings == []
    locate(checkpoint, set(values))
    for name, tensor in checkpoint.tensors.items():
        assert tensor.shape == values[name].shape
        assert tile_exactly([(chunk.origin, chunk.shape) for chunk in tensor.chunks], tensor.shape)
        for chunk in tensor.chunks:
            expected = raw(values[name][window(chunk)])
            assert checkpoint.files[chunk.file].read_bytes()[chunk.offset :][: len(expected)] == expected
        edges = {chunk.origin[len(p.leading)] for p in tensors if p.name == name for chunk in tensor.chunks}
        assert edges >= {cut for p in tensors if p.name == name for cut in p.cuts}


def window(chunk: Chunk) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(chunk.origin, chunk.shape, strict=True))


def test_common_state_and_objects(tmp_path: Path) -> None:
    common = layout.common_state({"num_layers": 3, "mtp_num_layers": 1}, per_layer=True)
    torch_dist(tmp_path, common=common)
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(tmp_path / "common.pt", weights_only=True)
    assert found == common
    assert found["checkpoint_version"] == 3.0
    assert found["content_metadata"]["non_homogeneous_layers"] is True
    assert "non_homogeneous_layers" not in layout.common_state({}, per_layer=False)["content_metadata"]
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.argument("mtp_num_layers") == 1
    assert checkpoint.argument("absent") is None
    assert checkpoint.extra_states == {"decoder.layers.fc1"}
    for place in checkpoint.contents.objects.values():
        data = (tmp_path / place.file).read_bytes()[place.offset : place.offset + place.length]
        assert torch.load(io.BytesIO(data), weights_only=True) == [None]


def test_the_common_state_as_an_object(tmp_path: Path) -> None:
    """What mcore 0.19 and later write instead of common.pt: a list of one."""
    args = argparse.Namespace(mtp_num_layers=2)
    dcp.save({"w": torch.zeros(2), COMMON_OBJECT: 0}, checkpoint_id=tmp_path, no_dist=True)
    contents = parse((tmp_path / ".metadata").read_bytes(), "")[0]
    stream = io.BytesIO()
    torch.save([{"args": args, "iteration": 5}], stream)
    (tmp_path / "extra.distcp").write_bytes(stream.getvalue())
    objects = {COMMON_OBJECT: Stored("extra.distcp", 0, len(stream.getvalue()))}
    (tmp_path / ".metadata").write_bytes(serialise(list(contents.tensors.values()), objects))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.argument("mtp_num_layers") == 2
    assert checkpoint.common["iteration"] == 5
    (tmp_path / "extra.distcp").unlink()
    assert [f.code for f in open_checkpoint(tmp_path).report.findings] == ["shard-missing"]


def test_training_state_is_told_from_the_model(tmp_path: Path) -> None:
    training = ["optimizer.state.exp_avg.x", "chained_0.optimizer.state.y", "rng_state", "opt_param_scheduler.z"]
    others = [replace(EMBEDDING, name=name) for name in training]
    checkpoint = open_checkpoint(torch_dist(tmp_path, (STACK, *others)))
    assert checkpoint.model_keys == {STACK.name}
    assert checkpoint.training_keys == set(training)
