"""What a conversion will take is said in advance and holds (THUDM/slime#967: out of memory while converting)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.cli.output import human_bytes
from tests.checkpoints import hf_tensors, iteration
from tests.conftest import Command, Tiny
from tests.convert.refusal import check_refusal

PROGRAM = "from ckpt_tools.cli import main; main()"


def ended(*words: object) -> dict[str, Any]:
    line = [sys.executable, "-c", PROGRAM, "convert", *map(str, words), "--json"]
    result: dict[str, Any] = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)["result"]
    return result


def peak_of(*words: object) -> int:
    """The most anonymous memory of a process of its own, looked at every two milliseconds."""
    line = [sys.executable, "-c", PROGRAM, "convert", *map(str, words), "--json"]
    process, peak = subprocess.Popen(line, stdout=subprocess.DEVNULL), 0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            found = [row for row in status.read_text().splitlines() if row.startswith("RssAnon:")]
        except OSError:
            break
        peak = max([peak, *(int(row.split()[1]) * 1024 for row in found)])
        time.sleep(0.002)
    assert process.wait() == 0
    return peak


LARGE = {"layers": 3, "hidden": 256, "ffn": 1024, "vocab": 2000}
MANY = {"layers": 200, "hidden": 64, "ffn": 128, "vocab": 96}  # small tensors fill the buffers
WAYS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "copied": ("deepseek_v3", LARGE, []),
    "gathered": ("mimo", MANY, ["--layout", "per-layer", "--max-shard-size", "4MB"]),
    "cast": ("deepseek_v3", LARGE, ["--dtype", "float32"]),
    "dequantised": ("deepseek_v3", LARGE | {"fp8": (128, 128)}, []),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_memory_that_was_announced_is_not_exceeded(way: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    family, options, words = WAYS[way]
    source = shared_tiny(family, **options)
    announced = ended(source, tmp_path / "td", *words, "--dry-run")["memory"]
    peak = peak_of(source, tmp_path / "td", *words)
    assert peak <= announced
    assert announced < 2.5 * peak, "a bound that says nothing"
    assert announced < 300_000_000


@pytest.mark.parametrize("direction", ["to torch-dist", "to hf"])
def test_bytes_are_those_of_the_tensors(direction: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Everything is read once; what is left out is not read."""
    source = shared_tiny("mimo", mtp=1, shards=3)
    whole = json.loads((source / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    head = command("extract-draft", source, tmp_path / "head", "--dry-run", "--json").result["nbytes"]
    if direction == "to hf":
        command("convert", source, tmp_path / "td")
        source = tmp_path / "td"
    for words, expected in ([], whole), (["--mtp", "drop"], whole - head):
        result = command("convert", source, tmp_path / "out", *words, "--dry-run", "--json").result
        assert result["nbytes_read"] == expected
        assert result["nbytes"] >= expected
        assert result["disk_needed"] > result["nbytes"]
        assert result["disk_free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert not (tmp_path / "out").exists()


def test_a_quantised_source_is_read_as_it_is_stored(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("deepseek_v3", fp8=(16, 24), mtp_copies=False)
    result = command("convert", source, tmp_path / "out", "--dry-run", "--json").result
    stored = {name: t.numel() * t.element_size() for name, t in hf_tensors(source).items() if "_scale" not in name}
    assert result["nbytes_read"] == sum(stored.values())


def test_people_see_what_it_will_take(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("qwen3")
    result = command("convert", source, tmp_path / "td", "--dry-run", "--json").result
    shown = command("convert", source, tmp_path / "td", "--dry-run").out
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert rows["reads"] == human_bytes(result["nbytes_read"])
    assert rows["writes"] == human_bytes(result["nbytes"])
    assert rows["memory"].startswith("up to ")
    assert rows["disk"].startswith(f"{human_bytes(result['disk_needed'])} needed, ")
    assert "reads" not in command("convert", source, tmp_path / "td").out


def test_what_an_interrupted_run_has_written_is_not_needed_again(
    shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = shared_tiny("qwen3")
    words = ["convert", source, tmp_path / "td", "--dry-run", "--json"]
    before = command(*words).result["disk_needed"]
    (tmp_path / "td.partial").mkdir()
    (tmp_path / "td.partial" / "half").write_bytes(b"x" * 40_960)
    assert command(*words).result["disk_needed"] <= before - 40_960


def test_too_little_disk_is_refused_before_the_first_byte(
    shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = shared_tiny("qwen3"), tmp_path / "made" / "out"
    needed = command("convert", source, target, "--dry-run", "--json").result["disk_needed"]
    usage = shutil.disk_usage(tmp_path)
    for free, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        ran = command("convert", source, target, "--json", code=int(not fits))
        if not fits:
            check_refusal(ran, "disk-full", target)
            assert (ran.findings[0]["expected"], ran.findings[0]["actual"]) == (
                f"{needed:,} bytes",
                f"{free:,} bytes free",
            )
            assert not target.parent.exists()
    assert (iteration(target) / ".metadata").is_file()
