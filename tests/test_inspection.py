"""Inspecting checkpoints whose family names or counts things in its own way."""

from __future__ import annotations

from pathlib import Path

from make_tiny import make_tiny

from ckpt_tools.convert import Options, convert
from ckpt_tools.inspection import fold, inspect_checkpoint


def test_layers_that_no_config_counts_are_no_error(tmp_path: Path) -> None:
    found = inspect_checkpoint(make_tiny("qwen3_next", tmp_path / "hf"))
    assert found.sound
    assert found.result.mtp_found == 1
    assert [finding.code for finding in found.findings] == ["mtp-uncounted"]


def test_a_wrapped_model_in_torch_dist(tmp_path: Path) -> None:
    convert(make_tiny("qwen3_5", tmp_path / "hf", vocab=100), tmp_path / "td", Options(rest="carry"))
    found = inspect_checkpoint(tmp_path / "td", check=True)
    assert found.sound
    assert (found.result.padded_vocab_size, found.result.mtp_found, found.result.mtp_declared) == (128, 1, 1)


def test_tensors_are_folded_by_whole_segments_that_are_numbers() -> None:
    names = ("a.0.b.7", "a.1.b.7", "a.3.b.7", "a1.0", "{x}.0", "b")
    folded = fold((name, "F32", (2,)) for name in names)
    assert {each.name: each.count for each in folded} == {"a.{0..1,3}.b.7": 3, "a1.0": 1, "{x}.0": 1, "b": 1}
    assert all(each.nbytes == 8 * each.count for each in folded)
