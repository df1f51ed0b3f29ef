"""Four-bit experts of compressed-tensors (Kimi-K2-Thinking): float32(value) * float32(scale), rounded once to bfloat16.

What is packed is stated by numpy here, from the format's own description: value + 8 in four bits, eight of them in an int32
from its lowest bits up, a scale per 32 columns. It was compared once with the compressed-tensors package, which is no
dependency.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import execute, tiling
from ckpt_tools.errors import CkptError
from ckpt_tools.inspection import inspect_checkpoint
from tests.checkpoints import Tensors, assert_same, changed, changed_config, config_of, hf_tensors, megatron_tensors
from tests.conftest import Tiny

GROUP = 32
WEIGHTS = {"group_size": GROUP, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"}
SCHEME: dict[str, Any] = {
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    "quant_method": "compressed-tensors",
}


def packed(name: str, weight: torch.Tensor, group: int = GROUP) -> tuple[Tensors, torch.Tensor]:
    """A matrix as the release stores it, and as it is meant."""
    rows, columns = weight.shape
    random = np.random.default_rng(sum(map(ord, name)))
    values = random.integers(-8, 8, (rows, columns))
    scales = torch.from_numpy(random.uniform(-0.02, 0.02, (rows, columns // group))).to(torch.bfloat16)
    bits = (values + 8).astype(np.uint32).reshape(rows, -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    words = np.bitwise_or.reduce(bits, axis=-1).view(np.int32)
    stored = {
        f"{name}_packed": torch.from_numpy(words.copy()),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor([rows, columns]),
    }
    meant = torch.from_numpy(values).float() * scales.float().repeat_interleave(group, 1)
    return stored, meant.to(torch.bfloat16)


def release(base: Path, out: Path, group: int = GROUP) -> tuple[Path, Tensors]:
    """A folder whose routed experts are packed, and the tensors that it means."""
    shutil.copytree(base, out)
    meant = hf_tensors(base)
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_file(path)
        for name in [name for name in tensors if ".experts." in name]:
            stored, meant[name] = packed(name, tensors.pop(name), group)
            tensors |= stored
        save_file(tensors, path, metadata={"format": "pt"})
    with changed_config(out) as config:
        groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS | {"group_size": group}}}
        config["quantization_config"] = SCHEME | {"config_groups": groups}
    return out, meant


@pytest.fixture
def source(shared_tiny: Tiny, tmp_path: Path) -> tuple[Path, Tensors]:
    return release(shared_tiny("kimi_k2", hidden=64, ffn=128), tmp_path / "int4")


def plain(folder: Path, tensors: Tensors, out: Path) -> Path:
    """The same release in bfloat16."""
    out.mkdir()
    shutil.copy(folder / "config.json", out)
    with changed_config(out) as config:
        del config["quantization_config"]
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", {"format": "pt"}
    )
    return out


def test_every_value_is_the_product_rounded_once(source: tuple[Path, Tensors], tmp_path: Path) -> None:
    folder, meant = source
    convert(folder, tmp_path / "td", Options(verify=True))
    convert(plain(folder, meant, tmp_path / "bf16"), tmp_path / "td-bf16", Options())
    assert_same(megatron_tensors(tmp_path / "td"), megatron_tensors(tmp_path / "td-bf16"))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "back"), meant)
    assert "quantization_config" not in config_of(tmp_path / "back")


@pytest.mark.parametrize("group", [32, 128])
def test_tiles_of_any_size_give_the_same(
    group: int, shared_tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are cut, and rows wider than a tile by columns, which the larger groups straddle."""
    folder, meant = release(shared_tiny("kimi_k2", hidden=128, ffn=512), tmp_path / "int4", group)
    convert(folder, tmp_path / "td", Options())
    convert(tmp_path / "td", tmp_path / "back", Options())
    assert_same(hf_tensors(tmp_path / "back"), meant)
    seen: list[int] = []

    def counted(move: Any, limit: int) -> Any:
        found = list(tiling.tiles(move, limit))
        seen.append(len(found))
        return found

    monkeypatch.setattr(execute, "tiles", counted)
    for limit in (64, 192):
        monkeypatch.setattr(execute, "TRANSFORM", limit)
        convert(folder, tmp_path / f"td-{limit}", Options(verify=True))
        assert_same(megatron_tensors(tmp_path / f"td-{limit}"), megatron_tensors(tmp_path / "td"))
    assert max(seen) > 8


def test_inspect_counts_what_is_stored(source: tuple[Path, Tensors]) -> None:
    folder, _ = source
    found, findings = inspect_checkpoint(folder)
    assert not [finding for finding in findings if finding.severity == "error"]
    stored = hf_tensors(folder)
    assert found.tensors == len(stored)
    assert found.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in stored.values())


NAME = "model.layers.1.mlp.experts.3.up_proj.weight"
WRONG_SCHEME: dict[str, Any] = {
    "num_bits": 8,
    "symmetric": False,
    "strategy": "channel",
    "group_size": 12,
    "type": "float",
}


@pytest.mark.parametrize("field", WRONG_SCHEME)
def test_another_scheme_is_refused(field: str, source: tuple[Path, Tensors], tmp_path: Path) -> None:
    folder, _ = source
    with changed_config(folder) as config:
        config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = WRONG_SCHEME[field]
    with pytest.raises(CkptError, match="pack-quantized"):
        convert(folder, tmp_path / "td", Options())
    assert not (tmp_path / "td").exists()


@pytest.mark.parametrize("part", ["_packed", "_scale"])
@pytest.mark.parametrize("harm", ["lost", "cut"])
def test_parts_that_do_not_fit_are_refused(part: str, harm: str, source: tuple[Path, Tensors], tmp_path: Path) -> None:
    folder, _ = source
    (path,) = (path for path in folder.glob("*.safetensors") if NAME + part in load_file(path))
    with changed(path) as tensors:
        if harm == "lost":
            del tensors[NAME + part]
        else:
            tensors[NAME + part] = tensors[NAME + part][:, :-1]
    with pytest.raises(CkptError, match=NAME.replace(".", r"\.")):
        convert(folder, tmp_path / "td", Options())
    assert not (tmp_path / "td").exists()
