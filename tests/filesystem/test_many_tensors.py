"""More than twenty thousand tensors in one model: nothing is lost, exchanged or slow because of their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.convert import Options, convert
from tests.checkpoints import assert_same, config_of, hf_tensors, megatron_tensors
from tests.conftest import Tiny
from tests.convert.expected_moe import expected_moe

SIZE = {"layers": 2, "hidden": 8, "heads": 2, "kv_heads": 1, "ffn": 8, "vocab": 16, "experts": 3400, "shards": 3}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["per-layer", pytest.param("stacked", marks=pytest.mark.huge)])
def test_twenty_thousand_tensors(layout: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    source = shared_tiny("qwen3_moe", **SIZE)
    original = hf_tensors(source)
    assert len(original) > 20_000
    convert(source, tmp_path / "td", Options(layout=layout))
    wanted = expected_moe(config_of(source), original, stacked=layout == "stacked")
    assert_same(megatron_tensors(tmp_path / "td"), wanted)
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "hf"), original)
