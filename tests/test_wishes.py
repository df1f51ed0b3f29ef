"""What people ask for in public threads and no tool did for them, each from its question to its answer."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ckpt_tools.drafts.manifest import MANIFEST, read_manifest
from ckpt_tools.hub import sending
from tests.checkpoints import changed, changed_config, config_of, hf_tensors, tree
from tests.conftest import Command, Tiny
from tests.drafts import heads
from tests.hub.publishing import pushed
from tests.hub.server import HubServer

OFFLINE = """
import sys
from ckpt_tools.cli import cli
from ckpt_tools.cli.boundary import run
code = run(cli, sys.argv[1:])
print([name for name in ("torch", "transformers", "sglang") if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def test_1_whether_a_pair_fits_before_a_gpu_is_booked(tmp_path: Path) -> None:
    """Which number clashes, with both values, on a machine that loads no framework."""
    target = heads.target(tmp_path / "target")
    head = heads.eagle(tmp_path / "head", hidden_size=6, num_attention_heads=3)
    words = ["verify-draft", str(head), "--target", str(target)]
    ran = subprocess.run([sys.executable, "-c", OFFLINE, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.splitlines()[-1] == "[]"
    line = next(line for line in ran.stdout.splitlines() if "hidden-size" in line)
    assert "16" in line and "12" in line
    good = ["verify-draft", str(heads.eagle(tmp_path / "good")), "--target", str(target)]
    ran = subprocess.run([sys.executable, "-c", OFFLINE, *good], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_3_the_count_of_mtp_layers_is_the_checkpoints_own(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A config that claims another count is an error with both; the export is complete with the layers and without."""
    model = tiny("mimo", mtp=2)
    with changed_config(model) as config:
        config["num_nextn_predict_layers"] = 1
    ran = command("convert", model, tmp_path / "no", "--json", code=1)
    (finding,) = ran.findings
    text = " ".join(finding.values())
    assert "1 declared" in text and "2 found" in text and not (tmp_path / "no").exists()
    for mtp, layers in (("drop", 0), ("2", 2)):
        command("convert", model, tmp_path / f"td{mtp}", "--mtp", mtp)
        command("convert", tmp_path / f"td{mtp}", tmp_path / f"hf{mtp}")
        names = hf_tensors(tmp_path / f"hf{mtp}").keys()
        assert names == {name for name in hf_tensors(model) if layers or "mtp_layers" not in name}
        assert config_of(tmp_path / f"hf{mtp}")["num_nextn_predict_layers"] == layers
        command("inspect", tmp_path / f"hf{mtp}", "--check")


def test_7_a_head_knows_its_target_and_no_path(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Hashes of architecture, tokenizer and weights travel along; a target that moved is told from one that did not."""
    target, head = tiny("mimo", mtp=1), tmp_path / "head"
    heads.write_tokenizer(target, 20)
    command("extract-draft", target, head)
    identity = read_manifest(head).target.identity
    assert all(identity[f"{what}_hash"] for what in ("arch", "tokenizer", "weights"))
    assert not [name for name, data in tree(head).items() if str(tmp_path).encode() in data]
    assert "target-weights-changed" not in command("verify-draft", head, "--target", target, "--json").codes
    with changed(next(target.glob("*.safetensors"))) as tensors:
        tensors["model.norm.weight"][0] += 1
    words = ("verify-draft", head, "--target", target, "--json")
    assert "target-weights-changed" in command(*words).codes
    assert "target-weights-changed" in command(*words, "--strict-target", code=1).codes


def test_14_a_quantised_target_from_end_to_end(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """float8 with block scales, its MTP layer as well: dequantised, taken out in bf16, put back, and excluded by name."""
    model = tiny("deepseek_v3", fp8=(16, 24), mtp=1)
    command("convert", model, tmp_path / "td")
    command("extract-draft", tmp_path / "td", tmp_path / "head")
    stored, head = hf_tensors(model), hf_tensors(tmp_path / "head")
    name = next(name for name, tensor in head.items() if stored[name].dtype == torch.float8_e4m3fn)
    scale = stored[f"{name}_scale_inv"].float().repeat_interleave(16, 0).repeat_interleave(24, 1)
    rows, columns = stored[name].shape
    assert torch.equal(head[name], (stored[name].float() * scale[:rows, :columns]).to(torch.bfloat16))
    assert not any(tensor.dtype == torch.float8_e4m3fn for tensor in head.values())
    command("merge-draft", model, tmp_path / "head", tmp_path / "merged")
    excluded = config_of(tmp_path / "merged")["quantization_config"]["modules_to_not_convert"]
    assert any(name.startswith(module) for module in excluded)
    merged = hf_tensors(tmp_path / "merged")
    assert merged[name].dtype == torch.bfloat16 and f"{name}_scale_inv" not in merged
    command("verify-draft", tmp_path / "merged", "--target", tmp_path / "merged")


def test_15_an_upload_that_breaks_and_is_run_again(
    hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five files, the third fails twice and then for good: nothing is seen on the branch before everything is there, and
    every file crosses the wire once."""
    monkeypatch.setattr(sending, "BATCH", 1)
    model = tiny("qwen3", layers=10, shards=5)
    shards = sorted(model.glob("*.safetensors"))
    (model / "notes.json").write_text('{"load": "/home/me/run"}')
    words = ("push", model, "someone/m", "--revision", "v2", "--license", "mit", "--json")
    assert command(*words, code=1).codes == ["local-path"] and not hub.requests("PUT"), "checked before the first byte"
    (model / "notes.json").unlink()
    third = hashlib.sha256(shards[2].read_bytes()).hexdigest()
    hub.fail(503, "PUT", third, times=2)
    hub.fail("drop", "PUT", third, times=1000)
    assert command(*words, code=1).codes == ["upload-failed"]
    assert pushed(hub, "someone/m", "v2") == {}
    hub.state.faults.clear()
    command(*words)
    files = pushed(hub, "someone/m", "v2")
    assert {"config.json", "model.safetensors.index.json", *(shard.name for shard in shards)} <= files.keys()
    assert hub.received() == sum(shard.stat().st_size for shard in shards)
    assert pushed(hub, "someone/m") == {}, "the branch that was named, and no other"
    card = files["README.md"].decode()
    assert "license: mit" in card and "| integrity | ok |" in card
    assert MANIFEST not in files
