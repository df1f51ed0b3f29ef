"""Data types, router biases, experts by number: public reports, each as a test of its whole kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints import (
    INDEX,
    assert_same,
    changed,
    hf_tensors,
    holders,
    megatron_tensors,
    write_index,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

from .expected_moe import under_one_name
from .refusal import check_refusal

BIAS = "model.layers.{}.mlp.gate.e_score_correction_bias"
EXACT = 1 + 2**-10
BIASED = ["deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"]


@pytest.mark.parametrize("family", BIASED)
@pytest.mark.parametrize("layer", [1, 2])
def test_a_missing_router_bias_is_named(family: str, layer: int, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Of a body layer (1) and of the MTP layer (2); dense layers have none (NVIDIA-NeMo/Megatron-Bridge#4199)."""
    source = tiny(family)
    with changed(source / "model.safetensors") as tensors:
        assert BIAS.format(0) not in tensors
        del tensors[BIAS.format(layer)]
    ran = command("convert", source, tmp_path / "td", "--json", code=1)
    check_refusal(ran, "tensors-missing", tmp_path / "td")
    assert ran.finding("tensors-missing")["actual"] == f"absent: {BIAS.format(layer)}"


@pytest.mark.parametrize("family", BIASED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_router_bias_is_told_and_kept(
    family: str, dtype: torch.dtype, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """A blanket cast of buffers changes which experts are chosen (miles#811, transformers#42580)."""
    source = tiny(family)
    with changed(source / "model.safetensors") as tensors:
        for layer in (1, 2):
            tensors[BIAS.format(layer)] = torch.full_like(tensors[BIAS.format(layer)], EXACT).to(dtype)
    for words in (["inspect", source], ["convert", source, tmp_path / "td"]):
        found = command(*words, "--json").finding("router-bias-rounded")
        assert (found["severity"], found["expected"]) == ("warning", "F32")
        assert found["actual"] == f"{BIAS.format(1)}, {BIAS.format(2)}"
    stored = [t for name, t in megatron_tensors(tmp_path / "td").items() if name.endswith("expert_bias")]
    assert [t.dtype for t in stored] == [dtype] * 2
    back = command("convert", tmp_path / "td", tmp_path / "hf", "--json").finding("router-bias-rounded")
    assert "decoder.layers.1.mlp.router.expert_bias" in back["actual"]
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


@pytest.mark.parametrize("family", BIASED)
def test_a_whole_router_bias_is_not_suspected(family: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    ran = command("convert", shared_tiny(family), tmp_path / "td", "--dtype", "bfloat16", "--json")
    assert "router-bias-rounded" not in ran.codes
    assert "router-bias-rounded" not in command("inspect", tmp_path / "td", "--json").codes


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "qwen3_5_moe_text"])
def test_expert_eleven_is_not_expert_one(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """The number belongs in the middle of a name, and twelve experts are twelve (volcengine/verl#2024, #2319)."""
    source = tiny(family, layers=3, expert_layout="per-expert", experts=12)
    with changed(source / "model.safetensors") as tensors:
        for name, tensor in tensors.items():
            if match := re.search(r"experts\.(\d+)\.", name):
                tensor.fill_(int(match[1]))
    original = hf_tensors(source)
    command("convert", source, tmp_path / "td")
    stored = megatron_tensors(tmp_path / "td")
    experts = [name for name in stored if re.search(r"experts\.experts\.linear_fc[12]\.weight$", name)]
    assert len(experts) >= 4
    for name in experts:
        assert stored[name].shape[0] == 12
        assert stored[name].amin(dim=(1, 2)).tolist() == stored[name].amax(dim=(1, 2)).tolist() == list(range(12))
    command("convert", tmp_path / "td", tmp_path / "hf")
    found = hf_tensors(tmp_path / "hf")
    assert_same(found, original)
    for part in ("gate", "up", "down"):
        assert sum(bool(re.search(rf"layers\.1\..*experts\.\d+\.{part}_proj", name)) for name in found) == 12
    assert not [name for name in found if re.search(r"weight\d+$", name)]
    ends = [(tmp_path / where / "model.safetensors").stat().st_size for where in ("hf", source)]
    assert abs(ends[0] - ends[1]) < 8192


GROUPED = {
    "numbers behind the name": "{layer}.mlp.experts.{part}.weight{expert}",
    "modules of their own": "{layer}.mlp.experts.local_experts.{expert}.{part}.weight",
}


@pytest.mark.parametrize("form", GROUPED)
def test_experts_under_the_names_of_a_module_are_refused(
    form: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """A state dict that was saved past Megatron's own naming: every name is told, none is guessed."""
    source = shared_tiny("qwen3_moe")
    command("convert", source, tmp_path / "td")
    grouped = {}
    for name, tensor in under_one_name(megatron_tensors(tmp_path / "td"), 0).items():
        match = re.fullmatch(r"(decoder\.layers\.\d)\.mlp\.experts\.experts\.(linear_fc[12])\.weight", name)
        if match is None:
            grouped[name] = tensor
            continue
        for expert in range(12):
            grouped[GROUPED[form].format(layer=match[1], part=match[2], expert=expert)] = tensor[expert].clone()
    write_torch_dist(tmp_path / "torch", grouped)
    ran = command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--json", code=1)
    check_refusal(ran, "tensors-unmapped", tmp_path / "hf")
    assert ran.finding("tensors-unmapped")["what"].startswith("48 tensors")
    assert "more" not in ran.finding("tensors-unmapped")["actual"]


@pytest.mark.parametrize("name", ["model.layers.1.mlp.experts.down_proj.weight11", "model.layers.1.mlp.experts.weight"])
def test_a_number_at_the_wrong_end_has_no_place(name: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    with changed(source / "model.safetensors") as tensors:
        tensors[name] = tensors.pop("model.layers.1.mlp.experts.11.down_proj.weight")
    ran = command("convert", source, tmp_path / "td", "--json", code=1)
    assert ran.finding("tensors-unmapped")["actual"] == name
    assert ran.finding("tensors-missing")["actual"] == "absent: model.layers.1.mlp.experts.11.down_proj.weight"


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text"])
@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
def test_packed_experts_the_other_way_round_are_refused(
    family: str, part: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Other releases store [experts, in, out]; equal sizes alone would let them pass (THUDM/slime#1702)."""
    source = tiny(family, expert_layout="packed", mtp_experts="packed")
    name = f"mtp.layers.0.mlp.experts.{part}"
    with changed(source / "model.safetensors") as tensors:
        shape = list(tensors[name].shape)
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    found = command("convert", source, tmp_path / "td", "--json", code=1).finding("shape")
    assert name in found["what"]
    assert (found["expected"], found["actual"]) == (str(shape), str([shape[0], shape[2], shape[1]]))


@pytest.mark.parametrize("shape", [(1, 3), (3, 2), (2, 3, 1)])
def test_a_scale_of_other_blocks_is_told_in_blocks(
    shape: tuple[int, ...], tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny("mimo", hidden=320, ffn=192, fp8=(128, 128))
    for name in ("model.layers.0.mlp.gate_proj.weight", "model.mtp_layers.0.mlp.gate_proj.weight"):
        with changed(source / "model.safetensors") as tensors:
            assert tensors[name].shape == (192, 320)
            before = tensors[f"{name}_scale_inv"]
            tensors[f"{name}_scale_inv"] = torch.ones(shape)
        found = command("convert", source, tmp_path / "td", "--json", code=1).finding("scale-shape")
        assert name in found["what"]
        assert found["expected"].startswith("[2, 3]") and str(list(shape)) in found["actual"]
        with changed(source / "model.safetensors") as tensors:
            tensors[f"{name}_scale_inv"] = before
    assert not (tmp_path / "td").exists()


def test_sizes_count_whatever_the_dtype(command: Command, tmp_path: Path) -> None:
    """Integer and boolean maps beside bfloat16 weights (pytorch/pytorch#192485)."""
    save_file({"d2t": torch.arange(8), "w": torch.ones(2, 2).bfloat16()}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"t2d": torch.ones(32, dtype=torch.bool)}, tmp_path / "model-00002-of-00002.safetensors")
    write_index(tmp_path, holders(tmp_path), total=7)
    found = command("inspect", tmp_path, "--json", code=1)
    assert (found.finding("total-size")["expected"], found.finding("total-size")["actual"]) == ("104", "7")
    assert found.result["dtypes"] == {"I64": 64, "BOOL": 32, "BF16": 8}
    command("inspect", tmp_path, "--write-index", code=1)
    assert '"total_size": 104' in (tmp_path / INDEX).read_text()


@pytest.mark.parametrize("rows", [(1024, 1152), (1152, 1024), (1024, 1000)])
def test_two_paddings_in_one_checkpoint(
    rows: tuple[int, int], shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Embedding and output layer that were padded by two rules (alibaba/Pai-Megatron-Patch#338)."""
    source = shared_tiny("qwen3", vocab=1000)
    command("convert", source, tmp_path / "td")
    stored = megatron_tensors(tmp_path / "td")
    for name, count in zip(("embedding.word_embeddings.weight", "output_layer.weight"), rows, strict=True):
        padding = torch.zeros(max(0, count - 1024), 32, dtype=torch.bfloat16)
        stored[name] = torch.cat([stored[name], padding])[:count]
    write_torch_dist(tmp_path / "torch", stored)
    ran = command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source, "--json", code=1)
    check_refusal(ran, "shape", tmp_path / "hf")
    assert str(list(stored["output_layer.weight"].shape)) in ran.finding("shape")["actual"]
