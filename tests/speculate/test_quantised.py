"""Float8 targets with float8 heads: what runs is what their values times their scales say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from make_tiny import make_tiny
from safetensors.torch import load_file, save_file
from tiny_models.weights import fp8_config, quantised

from ckpt_tools.drafts.export import Options as Writing
from ckpt_tools.drafts.mtp import extract_draft
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.target import Target, load_target
from ckpt_tools.tune.run import Job, Reading, tune
from ckpt_tools.tune.settings import Settings
from tests.checkpoints import assert_same, changed_config, dequantised, hf_tensors
from tests.conftest import Tiny

from . import worlds
from .conftest import Clockwork

FAMILIES = ("glm4_moe", "deepseek_v3", "mimo", "qwen3_next", "qwen3_5_moe")
BLOCKS = (16, 8)


def sizes(family: str) -> dict[str, Any]:
    return {"layers": 4 if family.startswith("qwen3_") else 2, "mtp": 1, "hidden": 64, "dtype": "float32"}


def opened(folder: Path) -> tuple[Target, Head]:
    target = load_target(folder)
    return target, build_head(open_draft(folder), target)


def in_float8(folder: Path, blocks: tuple[int, int]) -> Path:
    """Quantise a folder's linear weights where they are."""
    tensors = quantised(load_file(folder / "model.safetensors"), blocks, "float32")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": fp8_config(blocks)}))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("blocks", [BLOCKS, "channel"])
def test_a_head_has_the_values_that_its_scales_give(family: str, blocks: Any, tiny: Tiny, tmp_path: Path) -> None:
    """Inside its target and extracted; the target itself is not loaded for the second reading."""
    folder = tiny(family, **sizes(family), fp8=blocks)
    stored = load_file(folder / "model.safetensors")
    values = dequantised(stored, blocks)
    extract_draft(folder, tmp_path / "head", Writing())
    target = load_target(tiny(family, **sizes(family)))
    for place in (folder, tmp_path / "head"):
        state = build_head(open_draft(place), target).canonical_state()
        assert sum(stored[name].dtype == torch.float8_e4m3fn for name in state) >= 4
        assert_same(state, {name: values[name].float() for name in state})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float8_model_drafts_for_itself(family: str, clockwork: Clockwork) -> None:
    """transformers dequantises the target where there is no GPU, if its blocks are whole; many drafts are right."""
    target, head = opened(in_float8(clockwork(family, noise=2.0, **sizes(family)), (4, 4)))
    limits, counters = Limits(24), Counters(3)
    alone = plain(target, worlds.START, limits)
    assert speculative(target, head, worlds.START, limits, counters).tokens == alone.tokens
    assert 0.2 < counters.accept_rate < 1


def test_what_is_tuned_is_written_in_bfloat16(tmp_path: Path) -> None:
    """A float8 head learns in float32; nothing float8 and no scale is left of it."""
    folder = make_tiny("mimo", tmp_path / "target", fp8=BLOCKS, **sizes("mimo"))
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["w3 w4 w5", "w6 w7 w8", "w9 w5 w4"]))
    settings = Settings(rounds=1, prompts=2, new_tokens=6, updates=2, learning_rate=1e-2, warmup=0, temperature=0.0)
    tune(Job(folder, folder, tmp_path / "out", Reading(prompts=str(prompts)), settings, device="cpu"))
    spec, before = open_draft(tmp_path / "out"), dequantised(hf_tensors(folder), BLOCKS)
    assert not spec.errors and "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert {entry.dtype for entry in spec.tensors.values()} <= {"BF16", "F32"}
    assert not any(name.endswith(("_scale", "_scale_inv")) for name in spec.tensors)
    after = hf_tensors(tmp_path / "out")
    moved = {name: float((tensor.float() - before[name].float()).abs().max()) for name, tensor in after.items()}
    assert 0 < max(moved.values()) < 5e-2, "two updates of Adam move nothing by more than about the learning rate each"


def test_a_target_that_transformers_does_not_dequantise(tiny: Tiny) -> None:
    """Blocks that are cut at the edge: it says which, and what helps."""
    with pytest.raises(CkptError) as caught:
        load_target(tiny("deepseek_v3", **sizes("deepseek_v3"), fp8=(24, 20)))
    (finding,) = caught.value.findings
    assert finding.code == "target-not-loaded" and "convert" in finding.fix


def test_float8_that_no_scheme_explains_is_not_run(tiny: Tiny) -> None:
    """A config of another method reads no scales: the bare codes would be values."""
    folder = tiny("glm4_moe", **sizes("glm4_moe"), fp8=BLOCKS)
    target = load_target(tiny("glm4_moe", **sizes("glm4_moe")))
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}
    with changed_config(folder) as config:
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": weights}},
        }
    with pytest.raises(CkptError) as caught:
        build_head(open_draft(folder), target)
    assert [finding.code for finding in caught.value.findings] == ["scale-missing"]


def test_a_head_without_a_scale_is_not_run(tiny: Tiny) -> None:
    folder = tiny("glm4_moe", **sizes("glm4_moe"), fp8=BLOCKS)
    target = load_target(tiny("glm4_moe", **sizes("glm4_moe")))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.self_attn.o_proj.weight_scale_inv"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CkptError) as caught:
        build_head(open_draft(folder), target)
    assert [finding.code for finding in caught.value.findings] == ["scale-missing"]
