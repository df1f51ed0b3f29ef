"""Memory that does not grow with the model (pytorch/pytorch#119333, THUDM/slime#967: the whole model in RAM)."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from bench_models import make_model

LIMIT = 256 << 20


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def run(source: Path, target: Path) -> None:
    words = [sys.executable, "-c", "from ckpt_tools.cli import main; main()", "convert", str(source), str(target)]
    done = subprocess.run([*words, "--max-shard-size", "64MiB"], preexec_fn=limited, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_larger_than_the_allowed_memory(tmp_path: Path) -> None:
    make_model("glm4_moe", 700_000_000, tmp_path / "hf")
    size = sum(path.stat().st_size for path in (tmp_path / "hf").iterdir())
    assert size > 2 * LIMIT
    run(tmp_path / "hf", tmp_path / "td")
    run(tmp_path / "td", tmp_path / "back")
