"""Hugging Face -> torch-dist -> Hugging Face -> torch-dist: every bit of every tensor, every family and form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import assert_same, changed, config_of, hf_tensors, iteration, megatron_tensors, tree
from tests.conftest import Command, Tiny

from .expected import expected_megatron

BIASES = {"attention_bias": True, "mlp_bias": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-v5": ("llama", {"tied": True, "config_style": "v5"}),
    "llama-head-dim-fp16": ("llama", {"head_dim": 12, "dtype": "float16", "shards": 4}),
    "llama-biases": ("llama", {"extra_config": BIASES}),
    "qwen2-v5": ("qwen2", {"config_style": "v5", "shards": 2}),
    "qwen2-tied-fp32": ("qwen2", {"tied": True, "dtype": "float32"}),
    "qwen3-shards": ("qwen3", {"head_dim": 16, "shards": 3}),
    "qwen3-tied-head-stored": ("qwen3", {"tied": True, "store_tied_head": True}),
    "qwen3-mha-v5-fp32": ("qwen3", {"kv_heads": 4, "config_style": "v5", "dtype": "float32"}),
    "mimo-0": ("mimo", {"mtp": 0}),
    "mimo-1": ("mimo", {"mtp": 1, "shards": 5}),
    "mimo-2-v5-fp16": ("mimo", {"mtp": 2, "layers": 3, "config_style": "v5", "dtype": "float16"}),
}
WRITTEN: dict[str, tuple[list[str], dict[str, Any]]] = {
    "defaults": ([], {}),
    "per-layer": (["--layout", "per-layer", "--max-shard-size", "20KB"], {"stacked": False}),
    "separate": (["--norms", "separate"], {"norms": "separate"}),
    "mtp-model-layer": (
        ["--mtp-name", "mtp_model_layer", "--layout", "per-layer", "--norms", "separate"],
        {"mtp_name": "mtp_model_layer", "stacked": False, "norms": "separate"},
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("model", MODELS)
def test_round_trip(model: str, written: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    family, options = MODELS[model]
    words, form = WRITTEN[written]
    source, there, back, again = shared_tiny(family, **options), *(tmp_path / name for name in ("td", "hf", "td2"))
    original, config = hf_tensors(source), config_of(source)

    command("convert", source, there, *words)
    depth = config.get("num_nextn_predict_layers", 0)
    assert_same(megatron_tensors(there), expected_megatron(config, original, 128, mtp=depth, **form))

    command("convert", there, back, "--max-shard-size", "3KB")
    assert_same(hf_tensors(back), original)
    assert len(list(back.glob("*.safetensors"))) > 3
    assert _others(back) == _others(source)

    command("convert", back, again, *words)
    # frames keep the place that their bytes had within a page of the source, so files may differ in padding
    assert_same(megatron_tensors(again), megatron_tensors(there))


def _others(folder: Path) -> dict[str, bytes]:
    """Everything but weights and index: config.json and the files that travel with it."""
    return {name: data for name, data in tree(folder).items() if ".safetensors" not in name}


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
def test_casts_are_torchs_own(source: str, target: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    folder, there, back = shared_tiny("mimo", dtype=source), tmp_path / "td", tmp_path / "hf"
    dtype = getattr(torch, target)
    cast = {name: tensor.to(dtype) for name, tensor in hf_tensors(folder).items()}
    command("convert", folder, there, "--dtype", target, "--verify")
    assert_same(megatron_tensors(there), expected_megatron(config_of(folder), cast, 128, mtp=1))
    assert config_of(iteration(there) / "hf")["torch_dtype"] == target

    direct = tmp_path / "direct"
    command("convert", folder, direct)
    command("convert", direct, back, "--dtype", target, "--verify")
    assert_same(hf_tensors(back), cast)
    assert config_of(back) == {**config_of(folder), "torch_dtype": target}


def test_integers_are_never_cast(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("llama")
    with changed(source / "model.safetensors") as tensors:
        for name in [name for name in tensors if "down_proj" in name]:
            tensors[name] = torch.randint(-128, 127, tensors[name].shape, dtype=torch.int8)
    command("convert", source, tmp_path / "td", "--dtype", "float32")
    command("convert", tmp_path / "td", tmp_path / "hf", "--dtype", "float16")
    original, found = hf_tensors(source), hf_tensors(tmp_path / "hf")
    integers = {name for name, tensor in original.items() if tensor.dtype == torch.int8}
    assert len(integers) == 2
    assert {name for name, tensor in found.items() if tensor.dtype == torch.int8} == integers
    assert all(torch.equal(found[name], original[name]) for name in integers)


def test_a_value_that_does_not_fit_is_refused(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("llama", dtype="float32")
    with changed(source / "model.safetensors") as tensors:
        tensors["model.norm.weight"][3] = 1e30
    ran = command("convert", source, tmp_path / "td", "--dtype", "float16", "--json", code=1)
    assert ran.codes == ["cast-overflow"]
    assert "1e+30" in ran.findings[0]["actual"]
    assert not list(tmp_path.glob("td*"))


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0])
def test_special_values_survive(special: float, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3")
    with changed(source / "model.safetensors") as tensors:
        tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] = special
    command("convert", source, tmp_path / "td", "--verify")
    command("convert", tmp_path / "td", tmp_path / "hf", "--verify")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


def test_each_layer_may_have_its_own_dtype_when_layers_are_not_stacked(
    tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny("llama")
    with changed(source / "model.safetensors") as tensors:
        name = "model.layers.1.input_layernorm.weight"
        tensors[name] = tensors[name].float()
    command("convert", source, tmp_path / "td", "--layout", "per-layer")
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
