"""MTP weights lost, left behind or promised and absent: public reports, each as a test of its whole kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.checkpoints import (
    INDEX,
    assert_same,
    changed,
    changed_config,
    config_of,
    hf_tensors,
    holders,
    iteration,
    megatron_tensors,
    write_index,
)
from tests.conftest import Command, Tiny

MTP = "model.mtp_layers."
FIELD = "num_nextn_predict_layers"


@pytest.mark.parametrize("depth", [1, 2])
def test_the_checkpoint_says_how_many_layers_it_has(
    depth: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """An export must not need the layer count again (modelscope/ms-swift#9504, #9633, #6644)."""
    source = shared_tiny("mimo", mtp=depth)
    there = command("convert", source, tmp_path / "td")
    back = command("convert", tmp_path / "td", tmp_path / "hf")
    for ran in (there, back):
        assert f"MTP layers  {depth} found, {depth} written" in ran.out
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
    assert config_of(tmp_path / "hf")[FIELD] == depth


@pytest.mark.parametrize("direction", ["to torch-dist", "to hf"])
@pytest.mark.parametrize("word", ["drop", "0"])
def test_leaving_the_head_out_is_explicit_and_said(
    word: str, direction: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = shared_tiny("mimo", mtp=1)
    first, second = (["--mtp", word], []) if direction == "to torch-dist" else ([], ["--mtp", word])
    runs = [
        command("convert", source, tmp_path / "td", *first),
        command("convert", tmp_path / "td", tmp_path / "hf", *second),
    ]
    dropping = runs[0 if direction == "to torch-dist" else 1]
    assert "MTP layers  1 found, 0 written" in dropping.out
    body = {name: tensor for name, tensor in hf_tensors(source).items() if not name.startswith(MTP)}
    assert_same(hf_tensors(tmp_path / "hf"), body)
    assert config_of(tmp_path / "hf")[FIELD] == 0


@pytest.mark.parametrize("wanted", [2, 3])
@pytest.mark.parametrize("torch_dist", [False, True])
def test_another_count_than_is_there_is_refused(
    torch_dist: bool, wanted: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = shared_tiny("mimo", mtp=1)
    if torch_dist:
        command("convert", source, tmp_path / "td")
        source = tmp_path / "td"
    found = command("convert", source, tmp_path / "out", "--mtp", wanted, "--json", code=1).finding("mtp-count")
    assert f"--mtp {wanted} was asked for" in found["what"]
    assert "holds 1" in found["what"]
    layers = {2: "1", 3: "{1..2}"}[wanted]
    missing = f"mtp.layers.{layers}.enorm.weight" if torch_dist else f"mtp_layers.{layers}.final_layernorm.weight"
    assert missing in found["actual"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shards", [1, 3, 7])
@pytest.mark.parametrize("drop_first", [True, False])
def test_without_the_head_everything_else_is_still_there(
    drop_first: bool, shards: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Shards that hold MTP tensors beside others must not vanish with them (NVIDIA-NeMo/Megatron-Bridge#4188)."""
    source = shared_tiny("mimo", mtp=2, shards=shards)
    body = {name: tensor for name, tensor in hf_tensors(source).items() if not name.startswith(MTP)}
    command("convert", source, tmp_path / "td", *(["--mtp", "drop"] if drop_first else []))
    rest = [] if drop_first else ["--mtp", "drop"]
    command("convert", tmp_path / "td", tmp_path / "hf", *rest, "--max-shard-size", "10KB")
    assert_same(hf_tensors(tmp_path / "hf"), body)
    assert json.loads((tmp_path / "hf" / INDEX).read_text())["weight_map"] == holders(tmp_path / "hf")
    assert any(name.startswith("mtp.") for name in megatron_tensors(tmp_path / "td")) is not drop_first


def test_the_index_promises_tensors_that_no_file_holds(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """An exporter wrote the index it expected, not the one it wrote (redai-studio/Relax#148)."""
    source = tiny("mimo", shards=2)
    weight_map, shard = holders(source), "model-00002-of-00002.safetensors"
    ghosts = [name for name, file in weight_map.items() if name.startswith(MTP) and file == shard][:3]
    with changed(source / shard) as tensors:
        for name in ghosts:
            del tensors[name]
    for words in (["inspect", source], ["convert", source, tmp_path / "td"]):
        ran = command(*words, "--json", code=1)
        found = [finding for finding in ran.findings if finding["code"] == "index-ghost"]
        assert len(ghosts) == len(found) == 3
        for name, finding in zip(sorted(ghosts), sorted(found, key=lambda f: f["what"]), strict=True):
            assert name in finding["what"]
            assert shard in finding["where"]
    assert not (tmp_path / "td").exists()

    before = (source / INDEX).read_bytes()
    assert "index-ghost" in command("inspect", source, "--write-index", "--json", code=1).codes
    assert (source / INDEX).read_bytes() == before, "the only witness of lost tensors is kept"


def test_a_head_that_is_gone_on_purpose_can_be_settled(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo", shards=2)
    for file in set(holders(source).values()):
        with changed(source / file) as tensors:
            for name in [name for name in tensors if name.startswith(MTP)]:
                del tensors[name]
    (source / INDEX).unlink()
    assert command("inspect", source, "--write-index", "--json", code=1).codes == ["config-claims-mtp"]
    with changed_config(source) as config:
        config[FIELD] = 0
    command("inspect", source)
    command("convert", source, tmp_path / "td", "--verify")


@pytest.mark.parametrize("torch_dist", [False, True])
def test_the_config_claims_a_head_that_is_not_there(
    torch_dist: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Load and save in a library without MTP modules drops the tensors (huggingface/transformers#46129, #35688)."""
    source = tiny("mimo", mtp=1)
    with changed(source / "model.safetensors") as tensors:
        for name in [name for name in tensors if name.startswith(MTP)]:
            del tensors[name]
    if torch_dist:
        command("convert", source, tmp_path / "td", "--mtp", "drop")
        shutil.copyfile(source / "config.json", iteration(tmp_path / "td") / "hf" / "config.json")
        source = tmp_path / "td"
    found = command("inspect", source, "--json", code=1).finding("config-claims-mtp")
    assert found["actual"] == "1 declared, 0 found"
    assert "put the head back" in found["fix"]
    assert "set the count" in found["fix"]

    refused = command("convert", source, tmp_path / "out", "--json", code=1).finding("mtp-count")
    assert "1 declared, 0 found" in refused["what"]
    assert not (tmp_path / "out").exists()
    assert "0 found, 0 written" in command("convert", source, tmp_path / "out", "--mtp", "drop").out
    folder = tmp_path / "out" if torch_dist else iteration(tmp_path / "out") / "hf"
    assert config_of(folder)[FIELD] == 0


def test_an_index_without_ghosts_is_not_touched_by_inspect(tiny: Tiny, command: Command) -> None:
    source = tiny("mimo", shards=2)
    write_index(source, holders(source))
    before = (source / INDEX).read_bytes()
    command("inspect", source, "--check")
    assert (source / INDEX).read_bytes() == before
