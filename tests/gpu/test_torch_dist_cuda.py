"""megatron-core loads what was converted into a device's memory, saves it from there, and that converts back bit for bit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoints import hf_tensors
from tests.conftest import Command, Tiny

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="no megatron-core")
no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ("cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "dtype"), [("mimo", "bfloat16"), ("glm4_moe", "bfloat16"), ("qwen3", "float32")])
def test_saved_from_the_device(
    family: str, dtype: str, device: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny(family, dtype=dtype)
    command("convert", source, tmp_path / "torch-dist")
    saved = tmp_path / "saved"
    words = [sys.executable, "-m", "tests.gpu.megatron_on_device", tmp_path / "torch-dist" / "release", saved, device]
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True, timeout=300)
    command("convert", saved, tmp_path / "back", "--hf-config", source)
    wanted, found = hf_tensors(source), hf_tensors(tmp_path / "back")
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == []
    assert {found[name].dtype for name in found} == {wanted[name].dtype for name in wanted}
