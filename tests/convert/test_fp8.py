"""Block-quantised sources: float32(value) * float32(scale), rounded once to bfloat16; the way back is bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import execute
from ckpt_tools.errors import CkptError
from tests.checkpoints import (
    Tensors,
    assert_same,
    changed,
    changed_config,
    config_of,
    dequantised,
    hf_tensors,
    holders,
    megatron_tensors,
    write_index,
)
from tests.conftest import Tiny

from .expected import expected_megatron
from .expected_moe import expected_moe

FLOAT8 = torch.float8_e4m3fn
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"fp8": (16, 24)}),
    "mimo-large-blocks": ("mimo", {"fp8": (128, 128), "mtp": 2}),
    "qwen3_moe-bf16-scales": ("qwen3_moe", {"fp8": (16, 16), "scale_dtype": "bfloat16", "shards": 3}),
    "glm4_moe-channels": ("glm4_moe", {"fp8": "channel", "shards": 2}),
    "deepseek_v3": ("deepseek_v3", {"fp8": (16, 24), "shards": 4}),
    "deepseek_v3-rows": ("deepseek_v3", {"fp8": (7, 1000), "extra_config": {"q_lora_rank": None}}),
    "deepseek_v32": ("deepseek_v32", {"fp8": (64, 20)}),
    "glm_moe_dsa-columns": ("glm_moe_dsa", {"fp8": (1000, 5)}),
    "kimi_k2": ("kimi_k2", {"fp8": (24, 16), "shards": 2}),
    "qwen3_next": ("qwen3_next", {"fp8": (13, 11), "shards": 5}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {"fp8": (16, 16), "expert_layout": "per-expert"}),
}


def expected(config: dict[str, Any], hf: Tensors) -> Tensors:
    if config["model_type"] in ("llama", "mimo"):
        return expected_megatron(config, hf, 128, mtp=config.get("num_nextn_predict_layers", 0))
    return expected_moe(config, hf)


def refusal(source: Path, target: Path) -> list[str]:
    with pytest.raises(CkptError) as caught:
        convert(source, target, Options())
    assert not list(target.parent.glob(f"{target.name}*"))
    return [finding.code for finding in caught.value.findings]


@pytest.mark.parametrize("model", MODELS)
def test_every_value_is_the_product_rounded_once(model: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    family, options = MODELS[model]
    source = shared_tiny(family, **options)
    stored, config = hf_tensors(source), config_of(source)
    plain = dequantised(stored, options["fp8"])
    quantised = [name for name in plain if stored[name].dtype == FLOAT8]
    assert len(quantised) > 10
    assert len(stored) == len(plain) + len(quantised)

    convert(source, tmp_path / "td", Options(verify=True))
    assert_same(megatron_tensors(tmp_path / "td"), expected(config, plain))
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "hf"), plain)
    del config["quantization_config"]
    assert config_of(tmp_path / "hf") == config


@pytest.mark.parametrize("tile", [64, 300, 4096])
def test_tiles_do_not_change_values(
    tile: int, shared_tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a matrix is cut for execution, between its blocks or through them."""
    monkeypatch.setattr(execute, "TRANSFORM", tile)
    source = shared_tiny("qwen3_next", fp8=(13, 11), ffn=200)
    convert(source, tmp_path / "td", Options(max_shard_size=30_000))
    plain = dequantised(hf_tensors(source), (13, 11))
    assert_same(megatron_tensors(tmp_path / "td"), expected_moe(config_of(source), plain))


def test_scales_lie_in_other_files(shared_tiny: Tiny) -> None:
    where = holders(shared_tiny("deepseek_v3", fp8=(16, 24), shards=4))
    apart = [name for name in where if name + "_scale_inv" in where and where[name] != where[name + "_scale_inv"]]
    assert len(apart) > 10


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_a_wider_dtype_gets_the_product_itself(dtype: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    source = shared_tiny("deepseek_v3", fp8=(16, 24), shards=4)
    convert(source, tmp_path / "td", Options(dtype=dtype, verify=True))
    target = {"F32": torch.float32, "F16": torch.float16}[dtype]
    plain = dequantised(hf_tensors(source), (16, 24), target)
    bias = "e_score_correction_bias"
    wide = {name: tensor if name.endswith(bias) else tensor.to(target) for name, tensor in plain.items()}
    assert_same(megatron_tensors(tmp_path / "td"), expected_moe(config_of(source), wide))


def test_every_float8_value_under_small_and_large_scales(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("llama", hidden=256, ffn=16, fp8=(2, 32))
    at = "model.layers.0.mlp.up_proj.weight"
    with changed(source / "model.safetensors") as tensors:
        bytes_ = torch.arange(256, dtype=torch.uint8).repeat(16, 1)
        tensors[at] = bytes_.view(FLOAT8)
        scales = torch.tensor([1.0, 1e-38, 3e-41, 1e30, -0.3, 448.0, 2**-100, 0.0])
        tensors[at + "_scale_inv"] = torch.stack([scales.roll(n) for n in range(8)])
    convert(source, tmp_path / "td", Options())
    plain = dequantised(hf_tensors(source), (2, 32))
    found = megatron_tensors(tmp_path / "td")["decoder.layers.mlp.linear_fc1.weight"][0, 16:]
    assert torch.equal(found.isnan(), plain[at].isnan())
    assert found.isnan().sum() == 2 * 16
    finite = ~found.isnan()
    assert torch.equal(found[finite].view(torch.int16), plain[at][finite].view(torch.int16))


def test_a_product_that_does_not_fit_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """400 times 200 is beyond float16."""
    source = tiny("llama", fp8=(16, 16))
    with changed(source / "model.safetensors") as tensors:
        name = "model.layers.1.mlp.up_proj.weight"
        tensors[name][40, 20] = 400
        tensors[f"{name}_scale_inv"][2, 1] = 200
    with pytest.raises(CkptError) as caught:
        convert(source, tmp_path / "td", Options(dtype="F16"))
    assert [finding.code for finding in caught.value.findings] == ["cast-overflow"]
    assert not list(tmp_path.glob("td*"))
    convert(source, tmp_path / "td", Options())


def constant(tensors: Tensors, name: str) -> None:
    """192 rows and 320 columns of 2.0 (byte 0x40, 64 as an integer), in six blocks."""
    assert tensors[name].shape == (192, 320)
    tensors[name] = torch.full((192, 320), 0x40, dtype=torch.uint8).view(FLOAT8)
    tensors[f"{name}_scale_inv"] = torch.tensor([[0.5, 1, 2], [4, 8, 16]])


def test_known_numbers(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("mimo", hidden=320, ffn=192, fp8=(128, 128))
    names = ["model.layers.0.mlp.gate_proj.weight", "model.mtp_layers.0.mlp.gate_proj.weight"]
    with changed(source / "model.safetensors") as tensors:
        for name in names:
            constant(tensors, name)
    convert(source, tmp_path / "td", Options(verify=True))
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True))
    found = hf_tensors(tmp_path / "hf")
    assert not [name for name in found if "scale" in name]
    assert "quantization_config" not in (tmp_path / "hf" / "config.json").read_text()
    for name in names:
        assert found[name].dtype == torch.bfloat16
        places = {(0, 0): 1.0, (127, 128): 2.0, (0, 319): 4.0, (128, 0): 8.0, (191, 255): 16.0, (191, 319): 32.0}
        assert {place: found[name][place].item() for place in places} == places


@pytest.mark.parametrize("name", ["model.layers.1.mlp.experts.7.up_proj.weight", "model.layers.2.mlp.gate.weight"])
def test_a_scale_that_is_absent(name: str, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3", fp8=(16, 24))
    with changed(source / "model.safetensors") as tensors:
        tensors.pop(f"{name}_scale_inv", None)
        tensors[name] = tensors[name].to(FLOAT8)
    assert refusal(source, tmp_path / "td") == ["scale-missing"]


def test_an_absent_scale_in_another_file(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3", fp8=(16, 24), shards=4)
    name = "model.layers.1.self_attn.kv_b_proj.weight_scale_inv"
    path = source / holders(source)[name]
    save_file({n: t for n, t in load_file(path).items() if n != name}, path, metadata={"format": "pt"})
    write_index(source, holders(source))
    assert refusal(source, tmp_path / "td") == ["scale-missing"]


# up_proj is 24 x 32: in blocks of 16 x 24 its scales are 2 x 2.
GRIDS = [torch.ones(2, 1), torch.ones(1, 2), torch.ones(3, 2), torch.ones(2, 3), torch.ones(4), torch.ones(1, 2, 2)]


@pytest.mark.parametrize("grid", [*GRIDS, torch.ones(2, 2).int()], ids=lambda grid: f"{list(grid.shape)}{grid.dtype}")
def test_a_scale_of_the_wrong_shape(grid: torch.Tensor, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3", fp8=(16, 24))
    with changed(source / "model.safetensors") as tensors:
        name = "model.layers.1.mlp.experts.7.up_proj.weight_scale_inv"
        assert tensors[name].shape == (2, 2)
        tensors[name] = grid
    with pytest.raises(CkptError) as caught:
        convert(source, tmp_path / "td", Options())
    (finding,) = caught.value.findings
    assert finding.code == "scale-shape"
    assert "[2, 2]" in finding.expected
    assert str(list(grid.shape)) in finding.actual
    assert not list(tmp_path.glob("td*"))


def test_blocks_that_the_config_does_not_state(tiny: Tiny, tmp_path: Path) -> None:
    """They are not guessed from the shapes: 24 rows in 2 blocks may be 12 or 16 rows each."""
    source = tiny("deepseek_v3", fp8=(16, 24))
    with changed_config(source) as config:
        del config["quantization_config"]["weight_block_size"]
    assert set(refusal(source, tmp_path / "td")) == {"scale-shape"}


def test_a_scale_beside_a_plain_weight(tiny: Tiny, tmp_path: Path) -> None:
    """Nothing tells whether it has been applied."""
    source = tiny("deepseek_v3", fp8=(16, 24))
    with changed(source / "model.safetensors") as tensors:
        name = "model.layers.1.mlp.experts.7.up_proj.weight"
        tensors[name] = tensors[name].to(torch.bfloat16)
    assert refusal(source, tmp_path / "td") == ["tensors-unmapped"]


def test_another_quantisation_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3", fp8=(16, 24))
    with changed_config(source) as config:
        config["quantization_config"]["quant_method"] = "gptq"
    assert "quantisation-unsupported" in refusal(source, tmp_path / "td")
