"""Folders that disagree with themselves: one finding of the right code, with the facts in it; headers only."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ckpt_tools.errors import Finding, NotFound
from ckpt_tools.stores.hf_folder import INDEX, is_hf_folder, lay_out, open_folder, read_json

from .make import hf_folder, write_image

ONE, TWO, THREE = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
SHARDS = {ONE: {"a": (4, 8)}, TWO: {"b": (16, 8), "mtp.fc": (2, 2)}, THREE: {"c": (3,)}}


def findings(root: Path) -> list[Finding]:
    return open_folder(root).report.findings


def only(root: Path) -> Finding:
    (finding,) = findings(root)
    return finding


def test_a_sound_folder(tmp_path: Path) -> None:
    folder = open_folder(hf_folder(tmp_path, SHARDS))
    assert folder.report.findings == []
    assert {name: tensor.shape for name, tensor in folder.tensors.items()} == {
        name: shape for tensors in SHARDS.values() for name, shape in tensors.items()
    }
    assert [folder.files[folder.tensors[name].chunks[0].file].name for name in "abc"] == [ONE, TWO, THREE]
    assert folder.config == {}


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    folder = open_folder(hf_folder(tmp_path, {"model.safetensors": {"a": (2,)}}, index=False))
    assert folder.report.findings == []
    assert folder.tensors["a"].nbytes == 4


@pytest.mark.parametrize("order", list(permutations("xyz")))
def test_shard_names_and_their_order_mean_nothing(order: tuple[str, ...], tmp_path: Path) -> None:
    files = [f"{name}.safetensors" for name in order]
    folder = open_folder(hf_folder(tmp_path, dict(zip(files, SHARDS.values(), strict=True))))
    assert folder.report.findings == []
    assert folder.files[folder.tensors["a"].chunks[0].file].name == files[0]


def test_ghost(tmp_path: Path) -> None:
    finding = only(hf_folder(tmp_path, SHARDS, mtp__norm=TWO))
    assert (finding.code, finding.severity) == ("index-ghost", "error")
    assert "mtp.norm" in finding.what
    assert TWO in finding.where
    assert finding.actual == "in no file"


def test_wrong_shard(tmp_path: Path) -> None:
    finding = only(hf_folder(tmp_path, SHARDS, mtp__fc=ONE))
    assert finding.code == "index-wrong-shard"
    assert finding.expected == f"mtp.fc in {ONE}"
    assert finding.actual == f"found in {TWO}"


def test_shard_missing_with_index(tmp_path: Path) -> None:
    (hf_folder(tmp_path, SHARDS) / TWO).unlink()
    finding = only(tmp_path)
    assert finding.code == "shard-missing"
    assert TWO in finding.what
    assert finding.expected == f"{TWO} with 2 tensors"
    assert "incomplete download?" in finding.fix


def test_shard_missing_without_index(tmp_path: Path) -> None:
    four = {name.replace("00003.", "00004."): tensors for name, tensors in SHARDS.items()}
    finding = only(hf_folder(tmp_path, four, index=False))
    assert finding.code == "shard-missing"
    assert "model-00004-of-00004.safetensors" in finding.actual
    assert "4 files" in finding.what
    assert "incomplete download?" in finding.fix


def test_all_shards_without_index_are_fine(tmp_path: Path) -> None:
    assert findings(hf_folder(tmp_path, SHARDS, index=False)) == []


@pytest.mark.parametrize("name", ["x-1-of-999999999999", "x-²-of-³", "x-1-of-", "-of-", "x-of-2"])
def test_file_names_that_only_look_numbered(name: str, tmp_path: Path) -> None:
    assert findings(hf_folder(tmp_path, {f"{name}.safetensors": {"a": (1,)}}, index=False)) == []


def test_index_omits(tmp_path: Path) -> None:
    hf_folder(tmp_path, SHARDS)
    save_file({f"mtp.{n}": torch.zeros(1) for n in range(13)}, tmp_path / "mtp.safetensors")
    finding = only(tmp_path)
    assert finding.code == "index-omits"
    assert finding.what == "13 tensors in mtp.safetensors are not in the index"
    assert "mtp.{0..12}" in finding.actual
    assert len(open_folder(tmp_path).tensors) == 4 + 13


def test_tensor_twice(tmp_path: Path) -> None:
    hf_folder(tmp_path, SHARDS | {"copy.safetensors": {"b": (16, 8)}})
    codes = [finding.code for finding in findings(tmp_path)]
    assert codes == ["tensor-twice"]
    assert f"b in copy.safetensors and {TWO}" in only(tmp_path).actual


def test_total_size(tmp_path: Path) -> None:
    root = hf_folder(tmp_path, {"x.safetensors": {"a": (4, 8)}, "y.safetensors": {"b": (16, 8)}})
    index = json.loads((root / INDEX).read_text())
    assert index["metadata"]["total_size"] == 320
    assert findings(root) == []
    index["metadata"]["total_size"] = 512
    (root / INDEX).write_text(json.dumps(index))
    finding = only(root)
    assert (finding.code, finding.severity, finding.expected, finding.actual) == ("total-size", "warning", "320", "512")


@pytest.mark.parametrize("metadata", [None, [], {}, {"total_parameters": 1}])
def test_an_index_may_state_no_size(metadata: object, tmp_path: Path) -> None:
    root = hf_folder(tmp_path, SHARDS)
    index = json.loads((root / INDEX).read_text()) | {"metadata": metadata}
    (root / INDEX).write_text(json.dumps(index))
    assert findings(root) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'{"weight_map": "\xff"}'])
def test_index_is_not_json(data: bytes, tmp_path: Path) -> None:
    (hf_folder(tmp_path, SHARDS) / INDEX).write_bytes(data)
    with pytest.raises(NotFound) as caught:
        open_folder(tmp_path)
    assert caught.value.findings[0].code == "json-unreadable"
    assert caught.value.findings[0].where == str(tmp_path / INDEX)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": None}])
def test_index_without_a_weight_map(index: object, tmp_path: Path) -> None:
    (hf_folder(tmp_path, SHARDS) / INDEX).write_text(json.dumps(index))
    assert only(tmp_path).code == "index-invalid"


def test_an_index_never_reaches_outside(tmp_path: Path) -> None:
    hf_folder(tmp_path / "other", {"x.safetensors": {"z": (1,)}})
    finding = only(hf_folder(tmp_path / "here", SHARDS, z="../other/x.safetensors"))
    assert finding.code == "shard-missing"


def test_a_broken_shard_is_reported_once(tmp_path: Path) -> None:
    path = hf_folder(tmp_path, SHARDS) / TWO
    path.write_bytes(path.read_bytes()[:-1])
    finding = only(tmp_path)
    assert (finding.code, finding.where) == ("file-truncated", str(path))


def test_every_finding_is_gathered(tmp_path: Path) -> None:
    (hf_folder(tmp_path, SHARDS, ghost=ONE, mtp__fc=ONE) / THREE).unlink()
    assert sorted(f.code for f in findings(tmp_path)) == ["index-ghost", "index-wrong-shard", "shard-missing"]


@pytest.mark.parametrize("text", ["[1]", '"x"', "null", "no"])
def test_config_must_be_an_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(NotFound):
        read_json(tmp_path / "config.json")


def test_what_a_folder_is(tmp_path: Path) -> None:
    assert not is_hf_folder(tmp_path)
    assert not is_hf_folder(tmp_path / "nowhere")
    (tmp_path / "x.safetensors").touch()
    assert is_hf_folder(tmp_path)


sizes = st.lists(st.tuples(st.sampled_from(["BF16", "F32", "U8"]), st.lists(st.integers(0, 9), max_size=2)), max_size=9)


@settings(max_examples=40)
@given(entries=sizes.filter(len), limit=st.integers(1, 200))
def test_layout(entries: list[tuple[str, list[int]]], limit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Shards under the limit or of one tensor, names without a gap, an index that fits, all read back without findings."""
    tensors = [(f"t{n}", dtype, tuple(shape)) for n, (dtype, shape) in enumerate(entries)]
    image = lay_out(tensors, limit)
    root = write_image(image, tmp_path_factory.mktemp("layout"))
    folder = open_folder(root)
    assert folder.report.findings == []
    assert list(folder.tensors) == [name for name, _, _ in tensors]
    for number in range(len(folder.files)):
        held = [tensor for tensor in folder.tensors.values() if tensor.chunks[0].file == number]
        assert sum(tensor.nbytes for tensor in held) <= limit or len([t for t in held if t.nbytes]) == 1
    assert folder.tensors == image.tensors
    total = len(folder.files)
    expected = [f"model-{n:05d}-of-{total:05d}.safetensors" for n in range(1, total + 1)]
    assert [path.name for path in folder.files] == (expected if total > 1 else ["model.safetensors"])
    assert (root / INDEX).exists() == (total > 1)
    if total > 1:
        assert read_json(root / INDEX)["metadata"]["total_size"] == sum(t.nbytes for t in folder.tensors.values())
