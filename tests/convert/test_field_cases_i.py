"""torch-dist directories: strictness, trust, which iteration. Public reports, each as a test of its whole kind."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import (
    assert_same,
    changed_config,
    hf_tensors,
    iteration,
    megatron_tensors,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

MTP_NAMES = 11
"""Megatron tensors of one MiMo MTP layer: two norms, joint projection, final norm, and a layer of seven."""


def test_the_model_has_more_than_the_checkpoint(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A missing key is named by its stored name, all of them; nothing is invented (NVIDIA/Megatron-LM#1032)."""
    source = shared_tiny("mimo", mtp=1)
    command("convert", source, tmp_path / "with")
    command("convert", source, tmp_path / "td", "--mtp", "drop")
    gone = megatron_tensors(tmp_path / "with").keys() - megatron_tensors(tmp_path / "td").keys()
    assert len(gone) == MTP_NAMES
    for words in (["--hf-config", source], ["--mtp", "1"]):
        finding = command("convert", tmp_path / "td", tmp_path / "hf", *words, "--json", code=1).finding("mtp-count")
        assert finding["actual"].count("mtp.layers.0.") == MTP_NAMES
        assert all(name in finding["actual"] for name in gone)
        assert not (tmp_path / "hf").exists()
    ran = command("convert", tmp_path / "td", tmp_path / "hf", "--hf-config", source, "--mtp", "drop")
    assert "0 found, 0 written" in ran.out
    assert not [name for name in hf_tensors(tmp_path / "hf") if "mtp" in name]


def test_the_checkpoint_has_more_than_the_model(
    shared_tiny: Tiny, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    command("convert", shared_tiny("mimo", mtp=1), tmp_path / "td")
    other = tiny("mimo", mtp=0)
    finding = command("convert", tmp_path / "td", tmp_path / "hf", "--hf-config", other, "--json", code=1)
    actual = finding.finding("mtp-count")["actual"]
    assert actual.count("mtp.layers.0.") == MTP_NAMES
    assert not (tmp_path / "hf").exists()
    undeclared = command("inspect", tmp_path / "td", "--hf-config", other, "--json").finding("mtp-undeclared")
    assert (undeclared["severity"], undeclared["actual"]) == ("warning", "0 declared, 1 found")


STATE = "decoder.layers.mlp.linear_fc1._extra_state/shard_1_2"
WEIGHT = "decoder.layers.1.mlp.linear_fc2.weight"


def _without(folder: Path, *keys: str) -> None:
    """Take keys out of `.metadata`, as torch itself pickles it."""
    path = iteration(folder) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for key in keys:
        del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if index.fqn == key]:
            del metadata.storage_data[index]
    path.write_bytes(pickle.dumps(metadata))


STATES = {
    "stacked": STATE,
    "per-layer": "decoder.layers.1.self_attention.linear_qkv._extra_state/shard_0_1",
}


@pytest.mark.parametrize("layout", STATES)
def test_a_lost_extra_state_is_a_note(layout: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Module state of no weight may be absent; that must not open the door to weights (Megatron-Bridge#6032)."""
    source = shared_tiny("llama")
    command("convert", source, tmp_path / "td", "--layout", layout)
    _without(tmp_path / "td", STATES[layout])
    for words in (["inspect", tmp_path / "td"], ["convert", tmp_path / "td", tmp_path / "hf"]):
        finding = command(*words, "--json").finding("extra-state-partial")
        assert (finding["severity"], finding["actual"]) == ("note", f"absent: {STATES[layout]}")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


def test_a_lost_state_of_an_expert_or_of_the_mtp_layer_is_a_note_as_well(
    shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = shared_tiny("glm4_moe", mtp=2)
    command("convert", source, tmp_path / "td")
    lost = [
        "decoder.layers.1.mlp.experts.experts.linear_fc2._extra_state/shard_7_12",
        "mtp.layers.1.transformer_layer.self_attention.linear_proj._extra_state/shard_0_1",
    ]
    _without(tmp_path / "td", *lost)
    found = command("convert", tmp_path / "td", tmp_path / "hf", "--json").finding("extra-state-partial")
    assert set(found["actual"].removeprefix("absent: ").split(", ")) == set(lost)


def test_a_checkpoint_without_any_state_has_lost_none(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Megatron's local spec stores none."""
    source = shared_tiny("mimo", mtp=1)
    command("convert", source, tmp_path / "td")
    write_torch_dist(tmp_path / "torch", megatron_tensors(tmp_path / "td"))
    assert command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--json").codes == []


@pytest.mark.parametrize("also_state", [False, True])
def test_a_lost_weight_is_an_error_that_names_it_alone(
    also_state: bool, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td", "--layout", "per-layer")
    state = ["decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1"] if also_state else []
    _without(tmp_path / "td", WEIGHT, *state)
    for words in (["convert", tmp_path / "td", tmp_path / "hf"], ["inspect", tmp_path / "td"]):
        finding = command(*words, "--json", code=1).finding("tensors-missing")
        assert finding["actual"] == f"absent: {WEIGHT}"
    assert not (tmp_path / "hf").exists()


def test_a_complete_checkpoint_has_no_findings(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    for layout in ("stacked", "per-layer"):
        command("convert", shared_tiny("mimo", mtp=1), tmp_path / layout, "--layout", layout)
        assert command("inspect", tmp_path / layout, "--check", "--json").codes == []


def test_weights_do_not_need_trust(
    shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes of a training framework beside the weights are skipped, not imported (THUDM/slime#686, #1249)."""
    source = shared_tiny("llama")
    command("convert", source, tmp_path / "td")
    framework = types.ModuleType("framework_that_is_gone")
    framework.RunConfig = type("RunConfig", (), {"__module__": framework.__name__})  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, framework.__name__, framework)
        state = {"args": argparse.Namespace(run=framework.RunConfig()), "checkpoint_version": 3.0}
        torch.save(state, iteration(tmp_path / "td") / "common.pt")
    ran = command("convert", tmp_path / "td", tmp_path / "hf", "--json")
    finding = ran.finding("foreign-classes")
    assert (finding["severity"], finding["actual"]) == ("note", "framework_that_is_gone.RunConfig")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("file", [".metadata", "common.pt"])
def test_code_in_a_pickle_is_not_run(file: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td")
    path, victim = iteration(tmp_path / "td") / file, tmp_path / "created"
    evil = {"args": _Evil(victim)}
    if file == ".metadata":
        path.write_bytes(pickle.dumps(evil))
    else:
        torch.save(evil, path)
    for words in (["convert", tmp_path / "td", tmp_path / "hf"], ["inspect", tmp_path / "td"]):
        finding = command(*words, "--json", code=1).finding("unsafe-pickle")
        assert "mkdir" in finding["actual"]
        assert file in finding["where"]
    assert not victim.exists()
    assert not (tmp_path / "hf").exists()


def _iterations(root: Path, checkpoint: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(iteration(checkpoint), root / name)
    return root


@pytest.mark.parametrize(("said", "wanted"), [("20", "iter_0000020"), ("release", "release"), ("latest", "latest")])
def test_the_iteration_asked_for_is_not_there(
    said: str, wanted: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """A missing step must not become a silent fresh start (pytorch/torchtitan#1311)."""
    command("convert", shared_tiny("llama"), tmp_path / "td")
    root = _iterations(tmp_path / "run", tmp_path / "td", "iter_0000010")
    (root / "latest_checkpointed_iteration.txt").write_text(said)
    for words in (["convert", root, tmp_path / "hf"], ["inspect", root]):
        finding = command(*words, "--json", code=3).finding("iteration-not-found")
        assert wanted in finding["expected"]
        assert finding["actual"] == "iter_0000010"
    assert not (tmp_path / "hf").exists()


def test_the_only_iteration_is_used_and_said(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("llama")
    command("convert", source, tmp_path / "td")
    root = _iterations(tmp_path / "run", tmp_path / "td", "iter_0000010")
    ran = command("convert", root, tmp_path / "hf")
    assert "tracker-absent: no latest_checkpointed_iteration.txt; the only iteration iter_0000010 is used" in ran.err
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


def test_several_iterations_without_a_tracker_are_not_guessed(
    shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td")
    root = _iterations(tmp_path / "run", tmp_path / "td", "iter_0000010", "iter_0000020")
    assert command("inspect", root, "--json", code=3).codes == ["iteration-not-found"]
    (root / "latest_checkpointed_iteration.txt").write_text("20\n")
    assert command("inspect", root, "--json").result["path"] == str(root / "iter_0000020")
    assert command("inspect", root / "iter_0000010", "--json").result["path"] == str(root / "iter_0000010")


def test_the_tracker_is_written_last(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td")
    newest = max(tmp_path.joinpath("td").rglob("*"), key=lambda path: (path.is_file(), path.stat().st_mtime_ns))
    assert newest.name == "latest_checkpointed_iteration.txt"
    assert newest.read_text() == "release"


def test_torch_written_directories_are_read(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Not only our own frames: those of torch.distributed.checkpoint, with the config named."""
    source = shared_tiny("mimo", mtp=1)
    command("convert", source, tmp_path / "td")
    write_torch_dist(tmp_path / "torch", megatron_tensors(tmp_path / "td"), mtp_num_layers=1)
    command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--verify")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


def test_training_arguments_are_a_third_witness(
    shared_tiny: Tiny, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny("mimo", mtp=0)
    command("convert", source, tmp_path / "td")
    write_torch_dist(tmp_path / "torch", megatron_tensors(tmp_path / "td"), mtp_num_layers=1)
    ran = command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--json", code=1)
    assert "the training arguments: 1" in ran.finding("mtp-count")["actual"]
    with changed_config(source) as config:
        config["num_nextn_predict_layers"] = 0
    command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--mtp", "drop")
