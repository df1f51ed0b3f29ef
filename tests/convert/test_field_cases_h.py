"""Safetensors files, shards and indexes: public reports, each as a test of its whole kind."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints import INDEX, assert_same, changed, hf_tensors, holders, tree, write_index
from tests.conftest import Command, Tiny

GHOST = "model.mtp_layers.0.input_proj.weight"


def _index(folder: Path) -> dict[str, object]:
    index: dict[str, object] = json.loads((folder / INDEX).read_text())
    return index


def test_the_index_names_a_tensor_that_its_shard_lacks(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """1199 entries, 1198 tensors, and the one that is gone is the MTP projection (huggingface/huggingface_hub#4725)."""
    source = tiny("mimo", shards=2)
    file = holders(source)[GHOST]
    with changed(source / file) as tensors:
        del tensors[GHOST]
    finding = command("convert", source, tmp_path / "td", "--json", code=1).finding("index-ghost")
    assert GHOST in finding["what"]
    assert file in finding["where"]
    assert "index-ghost" in command("inspect", source, "--json", code=1).codes
    assert not (tmp_path / "td").exists()


def test_the_index_names_the_wrong_shard(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo", shards=2)
    weight_map = holders(source)
    files = sorted(set(weight_map.values()))
    right = weight_map[GHOST]
    write_index(source, {**weight_map, GHOST: next(file for file in files if file != right)})
    finding = command("convert", source, tmp_path / "td", "--json", code=1).finding("index-wrong-shard")
    assert finding["actual"] == f"found in {right}"
    assert "inspect --write-index" in finding["fix"]
    command("inspect", source, "--write-index")
    assert _index(source)["weight_map"] == weight_map
    command("convert", source, tmp_path / "td", "--verify")


def test_only_headers_are_read(tmp_path: Path, command: Command) -> None:
    """A file of 200 GB, all hole: whoever read it would take minutes."""
    rows, shards = 10**8, 2
    weight_map = {}
    for number in range(shards):
        name, file = f"tensor.{number}", f"model-{number + 1:05d}-of-00002.safetensors"
        entry = {name: {"dtype": "BF16", "shape": [rows, 500], "data_offsets": [0, rows * 1000]}}
        header = json.dumps(entry).encode()
        with (tmp_path / file).open("wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            stream.truncate(8 + len(header) + rows * 1000)
        weight_map[name] = file
    text = json.dumps({"metadata": {}, "weight_map": {**weight_map, "ghost": "model-00001-of-00002.safetensors"}})
    (tmp_path / INDEX).write_text(text)
    started = time.perf_counter()
    ran = command("inspect", tmp_path, "--json", code=1)
    assert time.perf_counter() - started < 5
    assert ran.codes == ["index-ghost", "config-not-found"]
    assert ran.result["nbytes"] == 2 * rows * 1000


def test_a_shard_is_not_there(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A load that goes on without a listed file serves noise (sgl-project/sglang#32279)."""
    source = tiny("llama", shards=3)
    (source / "model-00002-of-00003.safetensors").unlink()
    finding = command("convert", source, tmp_path / "td", "--json", code=1).finding("shard-missing")
    assert "model-00002-of-00003.safetensors" in finding["what"]
    assert "incomplete download?" in finding["fix"]
    command("inspect", source, "--write-index", code=1)
    assert "model-00002-of-00003.safetensors" in (source / INDEX).read_text(), "the witness is kept"
    assert not (tmp_path / "td").exists()


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_names_without_an_index_tell_of_missing_shards(lost: int, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("llama", shards=4)
    (source / INDEX).unlink()
    (source / f"model-0000{lost}-of-00004.safetensors").unlink()
    for words in (["convert", source, tmp_path / "td"], ["inspect", source, "--write-index"]):
        finding = command(*words, "--json", code=1).finding("shard-missing")
        assert f"model-0000{lost}-of-00004.safetensors" in finding["actual"]
    assert not (source / INDEX).exists()


def test_the_index_leaves_a_file_out(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """An index rewritten by a file pattern forgot the MTP file; what is on disk counts (osaurus-ai/vmlx-swift#388)."""
    source = tiny("mimo")
    tensors = hf_tensors(source)
    (source / "model.safetensors").unlink()
    head = {name: tensor for name, tensor in tensors.items() if ".mtp_layers." in name}
    body = sorted(tensors.keys() - head.keys())
    parts = {
        "model-00001-of-00002.safetensors": {name: tensors[name] for name in body[::2]},
        "model-00002-of-00002.safetensors": {name: tensors[name] for name in body[1::2]},
        "mtp.safetensors": head,
    }
    for file, part in parts.items():
        save_file(part, source / file)
    write_index(source, {name: file for name, file in holders(source).items() if file != "mtp.safetensors"})
    finding = command("convert", source, tmp_path / "td", "--json", code=1).finding("index-omits")
    assert f"{len(head)} tensors in mtp.safetensors" in finding["what"]
    assert "inspect --write-index" in finding["fix"]
    assert not (tmp_path / "td").exists()

    ran = command("inspect", source, "--write-index", "--json")
    assert ran.codes == []
    assert ran.result["mtp_found"] == 1
    assert _index(source)["weight_map"] == holders(source)
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), tensors)


def test_total_size_counts_tensors_not_files(tmp_path: Path, command: Command) -> None:
    """Sizes of files include headers (ml-explore/mlx-examples#413)."""
    save_file({"a": torch.ones(4, 8, dtype=torch.bfloat16)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(16, 8, dtype=torch.bfloat16)}, tmp_path / "two.safetensors")
    write_index(tmp_path, holders(tmp_path), total=321)
    finding = command("inspect", tmp_path, "--json", code=1).finding("total-size")
    assert (finding["severity"], finding["expected"], finding["actual"]) == ("warning", "320", "321")
    command("inspect", tmp_path, "--write-index", code=1)  # there is still no config.json
    assert _index(tmp_path)["metadata"] == {"total_size": 64 + 256}
    (tmp_path / "one.safetensors").unlink()
    (tmp_path / INDEX).unlink()
    command("inspect", tmp_path, "--write-index", code=1)
    assert _index(tmp_path) == {"metadata": {"total_size": 256}, "weight_map": {"b": "two.safetensors"}}


@pytest.mark.parametrize("family", ["llama", "mimo"])
def test_the_index_we_write_is_right(family: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny(family)
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf", "--max-shard-size", "6KB")
    found = hf_tensors(tmp_path / "hf")
    assert _index(tmp_path / "hf") == {
        "metadata": {"total_size": sum(tensor.numel() * tensor.element_size() for tensor in found.values())},
        "weight_map": holders(tmp_path / "hf"),
    }
    before = (tmp_path / "hf" / INDEX).read_bytes()
    assert command("inspect", tmp_path / "hf", "--write-index", "--json").codes == []
    assert json.loads(before) == _index(tmp_path / "hf")


def test_rewriting_the_index_is_all_or_nothing(tiny: Tiny, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny("llama", shards=2)
    before = tree(source)

    def full(path: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    command("inspect", source, "--write-index", code=3)
    assert tree(source) == before


def test_a_single_file_needs_no_index(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """ "An index file is required" for a small model (ISEEKYAN/mbridge#41)."""
    source = shared_tiny("mimo")
    assert sorted(path.name for path in source.glob("model*")) == ["model.safetensors"]
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert sorted(path.name for path in (tmp_path / "hf").glob("model*")) == ["model.safetensors"]
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


def test_a_tensor_larger_than_the_limit_stands_alone(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf", "--max-shard-size", "1")
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    names = [name for name, _ in sorted(holders(tmp_path / "hf").items(), key=lambda item: item[1])]
    assert len(files) == len(names) == 21
    assert [file.name for file in files] == [f"model-{i:05d}-of-00021.safetensors" for i in range(1, 22)]
