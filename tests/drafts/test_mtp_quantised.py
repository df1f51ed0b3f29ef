"""MTP layers of quantised targets, out and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.export import Options
from ckpt_tools.drafts.merge import merge_draft
from ckpt_tools.drafts.mtp import extract_draft
from ckpt_tools.errors import CkptError
from tests.checkpoints import (
    assert_same,
    changed_config,
    config_of,
    hf_tensors,
)
from tests.conftest import Tiny

from .mtp_layers import codes, head_of


def quantised(model: Path, **scheme: Any) -> None:
    with changed_config(model) as config:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], **scheme}


def test_a_bf16_head_in_a_quantised_target(tiny: Tiny, tmp_path: Path) -> None:
    """Alone the head is not quantised; inside the target its modules are excluded, mtp.fc as well."""
    model = tiny("qwen3_next")
    extract_draft(model, tmp_path / "plain", Options())
    quantised(model, modules_to_not_convert=["lm_head", "mtp.layers.0.mlp.gate"])
    extract_draft(model, tmp_path / "head", Options())
    assert "quantization_config" not in config_of(tmp_path / "head")
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    listed = config_of(tmp_path / "merged")["quantization_config"]["modules_to_not_convert"]
    assert listed[:2] == ["lm_head", "mtp.layers.0.mlp.gate"] and len(set(listed)) == len(listed)
    wanted = {
        "mtp.fc",
        "mtp.layers.0.self_attn.q_proj",
        "mtp.layers.0.mlp.experts",
        "mtp.layers.0.mlp.shared_expert.up_proj",
    }
    assert wanted < set(listed)
    assert not any("experts.0" in name for name in listed)


def test_a_method_without_a_known_list_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("mimo")
    extract_draft(model, tmp_path / "head", Options())
    quantised(model, quant_method="other")
    with pytest.raises(CkptError) as failure:
        merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    assert codes(failure) == ["quant-exclude-unknown"]


def test_a_quantised_head_keeps_its_scales(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("glm4_moe", fp8=(16, 16))
    extract_draft(model, tmp_path / "head", Options())
    assert_same(hf_tensors(tmp_path / "head"), head_of(hf_tensors(model), "glm4_moe"))
    assert any(name.endswith("_scale_inv") for name in hf_tensors(tmp_path / "head"))
    assert "quantization_config" in config_of(tmp_path / "head")
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    assert_same(hf_tensors(tmp_path / "merged"), hf_tensors(model))
    with pytest.raises(CkptError) as failure:
        merge_draft(tiny("glm4_moe"), tmp_path / "head", tmp_path / "other", Options())
    assert codes(failure) == ["quantisation-differs"]
