"""Start an oracle job's ranks, wait for them, and join their results. Imports neither torch nor Megatron.

A job is `{"tp": 1, "pp": 1, "ep": 1, "steps": [step, ...]}`; all steps run in the same processes, since starting those is what
takes the time. Every step has `kind` and `hf` (a Hugging Face folder: config.json and safetensors files) and may have
`dtype` ("fp32", the default, or "bf16"), `padded_vocab`, `mtp` (how many MTP layers the model has; 0 for none) and
`first_stage_layers` (decoder layers of the first pipeline stage); without them the folder's own numbers hold. With
`te_names` the model is one of stand-ins for TransformerEngine's modules (stand_ins.py), as those of gated delta nets always
are; without, it is Megatron's local spec.

* load: `dir` (a torch-dist iteration directory).
  Result: `equal`, `compared`, `mismatches`, `uncovered`, `common`, `common_keys`.
* logits: `dir`, optional `seed`, `length`; one rank, fp32.
  Result: `main` and `mtp` (over all depths) with `max_abs_difference` and `scale`, and `rotary_relative_difference`
  (none without rotary embedding).
* save: `dir`, optional `content_metadata` (a dict) and `training`
  `{"iteration": 7, "optimizer": "distributed" | "adam", "rng": true, "args": {...}}`.
* resume: `dir`, `optimizer` as in `training`. Result: `refused`, Megatron's message, "" where it loads.
* mtp_loss: `ids`, `labels`, `loss_mask` (nested lists [batch, sequence]), `out` (the safetensors file to write gradients to);
  one rank, fp32, no `dir`: the weights are the folder's. Result: `losses` (one per depth), `factor`, `moved` (names).
* dump: `dir`, `out` (the safetensors file to write); one rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PACKAGE = __package__ or "oracles.megatron"
ROOT = Path(__file__).resolve().parents[len(PACKAGE.split("."))]
TAIL = 6000


class OracleError(RuntimeError):
    """A rank failed or did not finish; the message holds the tail of its output."""


def run_step(step: dict[str, Any], *, tp: int = 1, pp: int = 1, ep: int = 1, timeout: float = 300) -> dict[str, Any]:
    """Run a single step under a layout."""
    result: dict[str, Any] = run_job({"tp": tp, "pp": pp, "ep": ep, "steps": [step]}, timeout)["steps"][0]
    return result


def run_job(job: dict[str, Any], timeout: float = 300) -> dict[str, Any]:
    """Run a job: `{"steps": [result, ...], "seconds": ...}`, the ranks' results joined; raises OracleError."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-") as name:
        scratch = Path(name)
        _run_worker(job, scratch, timeout)
        world_size = job.get("tp", 1) * job.get("pp", 1) * job.get("ep", 1)
        per_rank = [json.loads((scratch / f"result-{rank}.json").read_text()) for rank in range(world_size)]
    steps = [_join([results[number] for results in per_rank]) for number in range(len(job["steps"]))]
    return {"steps": steps, "seconds": time.monotonic() - started}


def _run_worker(job: dict[str, Any], scratch: Path, timeout: float) -> None:
    """Run the worker, which forks the ranks, in a session of its own so that a late one ends with all its ranks."""
    environment = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        TORCHDYNAMO_DISABLE="1",  # Megatron compiles small functions, which takes longer than all they compute here
        CUDA_VISIBLE_DEVICES="",
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    )
    command = [sys.executable, "-m", f"{PACKAGE}.worker", json.dumps(job), str(scratch)]
    with (scratch / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=scratch, start_new_session=True
        )
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise OracleError(f"the ranks did not finish in {timeout} s:\n{_tail(scratch)}") from None
    finally:
        _end_session(process)
    if code:
        raise OracleError(_tail(scratch))


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(scratch: Path) -> str:
    """The end of the output of the rank that failed first, or of every process when none is known to have failed."""
    failed = scratch / "failed"
    names = [f"output-{failed.read_text()}.txt"] if failed.exists() else sorted(p.name for p in scratch.glob("out*"))
    outputs = ((name, (scratch / name).read_text(errors="replace")) for name in names)
    return "\n".join(f"--- {name}\n{text[-TAIL:]}" for name, text in outputs if text)


def _join(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One step's result over all ranks."""
    first = dict(results[0], seconds=max(result["seconds"] for result in results))
    if first["kind"] != "load":
        return first
    names = {name for result in results for name in result["names"]}
    first["compared"] = sum(result["compared"] for result in results)
    first["mismatches"] = [mismatch for result in results for mismatch in result["mismatches"]]
    first["uncovered"] = sorted(set(first.pop("expected_names")) - names)
    first["equal"] = not first["mismatches"] and not first["uncovered"]
    del first["names"]
    return first
