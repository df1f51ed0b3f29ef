"""What preflight costs on a checkpoint of 1.4 TB: metadata only, so processor time is all there is to pay."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from make_sparse import make_sparse
from make_sparse_megatron import make_sparse_megatron

CODE = """
import sys, ckpt_tools
found = ckpt_tools.preflight(target=sys.argv[1], torch_dist=sys.argv[2], args="--mtp-num-layers 1", server_args="--tp-size 8")
assert found.result.mtp_layers == 1 and "MTP layers" in {check.name for check in found.result.checks if check.outcome == "ok"}
"""
ALLOWED_S = 2.0
RUNS = 3


def processor_time(code: str, *words: object) -> float:
    """Seconds that a new interpreter takes on a processor, whatever else runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.huge
def test_the_largest_pair_takes_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    target = make_sparse("DeepSeek-V3", tmp_path / "hf")
    stored = make_sparse_megatron(target, tmp_path / "td", tp=8)
    assert sum(path.stat().st_size for path in stored.rglob("*.distcp")) > 1.3e12
    processor_time(CODE, target, stored)  # compiles the modules
    assert min(processor_time(CODE, target, stored) for _ in range(RUNS)) < ALLOWED_S
