"""Names, prefixes and layer numbers: public reports, each as a test of its whole kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import (
    assert_same,
    changed,
    changed_config,
    config_of,
    hf_tensors,
    holders,
    iteration,
    megatron_tensors,
    tree,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

NAMES = ("transformer_layer", "mtp_model_layer")


@pytest.mark.parametrize("shards", [1, 3])
def test_an_unknown_name_is_named(shards: int, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A name without a place stops everything, with the full list, before a byte is written (THUDM/slime#1496)."""
    source = tiny("mimo", shards=shards)
    strangers = ["model.mtp_layers.0.mystery.weight", "model.layers.0.self_attn.q_norm.weight", "visual.patch.weight"]
    file = next(iter(holders(source).values()))
    with changed(source / file) as tensors:
        tensors |= {name: torch.ones(3) for name in strangers}
    (source / "model.safetensors.index.json").unlink(missing_ok=True)
    found = command("convert", source, tmp_path / "td", "--json", code=1).finding("tensors-unmapped")
    assert all(name in found["actual"] for name in strangers)
    assert not (tmp_path / "td").exists()


@pytest.mark.parametrize(("family", "depth"), [("mimo", 2), ("deepseek_v3", 2), ("qwen3_next", 1), ("glm4_moe", 1)])
def test_both_names_of_the_inner_layer_are_one(
    family: str, depth: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Megatron versions and forks name the layer inside an MTP layer differently (radixark/miles#1289)."""
    source = shared_tiny(family, mtp=depth)
    for name in NAMES:
        command("convert", source, tmp_path / name, "--mtp-name", name)
        inner = {key.split(".")[3] for key in megatron_tensors(tmp_path / name) if key.count(".") > 4 and "mtp." in key}
        assert inner == {name}
        assert command("inspect", tmp_path / name, "--json").result["variants"]["mtp"] == name
        command("convert", tmp_path / name, tmp_path / f"hf-{name}")
    assert tree(tmp_path / f"hf-{NAMES[0]}") == tree(tmp_path / f"hf-{NAMES[1]}")


@pytest.mark.parametrize("part", ["linear_fc", "linear_proj", "layers.1."])
def test_two_names_in_one_checkpoint_are_refused(
    part: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """In one layer, or one of two layers."""
    source = shared_tiny("mimo", mtp=2)
    command("convert", source, tmp_path / "td")
    mixed = {
        name.replace(*NAMES) if part in name else name: tensor
        for name, tensor in megatron_tensors(tmp_path / "td").items()
    }
    write_torch_dist(tmp_path / "mixed", mixed)
    ran = command("convert", tmp_path / "mixed", tmp_path / "out", "--hf-config", source, "--json", code=1)
    found = ran.finding("mtp-naming-mixed")
    assert all(name in found["actual"] for name in NAMES)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layers", [3, 61, 62, 63])
def test_no_layer_number_is_special(layers: int, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Tools that know one depth by heart drop or misplace layers of another (ml-explore/mlx-lm#1524)."""
    source = shared_tiny("mimo", layers=layers, hidden=8, heads=2, kv_heads=1, ffn=8, vocab=16)
    command("convert", source, tmp_path / "td", "--layout", "per-layer")
    command("convert", tmp_path / "td", tmp_path / "hf")
    original, megatron = hf_tensors(source), megatron_tensors(tmp_path / "td")
    assert_same(hf_tensors(tmp_path / "hf"), original)
    for i in range(layers):
        down = original[f"model.layers.{i}.mlp.down_proj.weight"]
        assert torch.equal(megatron[f"decoder.layers.{i}.mlp.linear_fc2.weight"], down)
    down = original["model.mtp_layers.0.mlp.down_proj.weight"]
    assert torch.equal(megatron["mtp.layers.0.transformer_layer.mlp.linear_fc2.weight"], down)


SPELLINGS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
COUNTS: dict[str, tuple[dict[str, Any], int]] = {
    "absent": ({}, 0),
    "null": ({"top": None}, 0),
    "zero": ({"top": 0}, 0),
    "one": ({"top": 1}, 1),
    "nested": ({"nested": 1}, 1),
    "null-above-nested": ({"top": None, "nested": 1}, 1),
    "agreeing": ({"top": 1, "nested": 1}, 1),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "conflict": ({"top": 0, "nested": 1}, "config-conflict"),
    "negative": ({"top": -1}, "config-value"),
    "fraction": ({"top": 1.5}, "config-value"),
    "text": ({"nested": "1"}, "config-value"),
    "true": ({"top": True}, "config-value"),
}


def _state(source: Path, levels: dict[str, Any], spelling: str) -> None:
    with changed_config(source) as config:
        for name in SPELLINGS:
            config.pop(name, None)
        if "top" in levels:
            config[spelling] = levels["top"]
        if "nested" in levels:
            config["text_config"] = {spelling: levels["nested"]}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("case", COUNTS)
def test_the_count_is_read_in_one_way(case: str, spelling: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """null, absent, nested, two spellings: every command sees the same count (NVIDIA/Model-Optimizer#1532)."""
    levels, count = COUNTS[case]
    source = tiny("mimo", mtp=count)
    _state(source, levels, spelling)
    assert command("inspect", source, "--json").result["mtp_declared"] == count
    for ref in (source, source / "config.json"):
        assert command("megatron-args", ref, "--json").result["mtp_num_layers"] == count
    assert command("convert", source, tmp_path / "td", "--json").result["mtp_written"] == count
    assert (iteration(tmp_path / "td") / "hf" / "config.json").read_bytes() == (source / "config.json").read_bytes()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("case", WRONG)
def test_a_count_that_cannot_be_is_named(
    case: str, spelling: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    levels, code = WRONG[case]
    source = tiny("mimo", mtp=1)
    _state(source, levels, spelling)
    refs: list[list[object]] = [
        ["inspect", source],
        ["megatron-args", source],
        ["megatron-args", source / "config.json"],
    ]
    for words in [*refs, ["convert", source, tmp_path / "td"]]:
        finding = command(*words, "--json", code=1).finding(code)
        assert all(repr(value) in finding["actual"] for value in levels.values())
    assert not (tmp_path / "td").exists()


def test_two_spellings_must_agree(tiny: Tiny, command: Command) -> None:
    source = tiny("mimo", mtp=1)
    with changed_config(source) as config:
        config["mtp_num_hidden_layers"] = 2
    finding = command("inspect", source, "--json", code=1).finding("config-conflict")
    assert "num_nextn_predict_layers (top level): 1" in finding["actual"]
    assert "mtp_num_hidden_layers (top level): 2" in finding["actual"]


def test_dropping_the_head_edits_the_count_where_it_stands(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo", mtp=1)
    _state(source, {"top": 1, "nested": 1}, SPELLINGS[1])
    command("convert", source, tmp_path / "td", "--mtp", "drop")
    command("convert", tmp_path / "td", tmp_path / "hf")
    expected = config_of(source) | {SPELLINGS[1]: 0, "text_config": {SPELLINGS[1]: 0}}
    assert config_of(tmp_path / "hf") == expected
