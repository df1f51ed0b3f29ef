"""The ranks of an oracle job: `python -m <this package>.worker '<job as JSON>' <scratch directory>`.

This process imports torch and Megatron once and then forks one process per rank, since those imports take longer than
everything else. Each rank writes `output-<rank>.txt` and `result-<rank>.json` into the scratch directory. Nothing heavy
is imported at the top of this module: Megatron's saver spawns helper processes that import it again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn


def main(job: dict[str, Any], scratch: Path) -> int:
    """Start all ranks and wait; the first one that fails ends the others, which would wait for it forever."""
    warnings.filterwarnings("ignore")
    _import_heavy_modules()
    ranks = {_fork_rank(job, rank, scratch): rank for rank in range(_world_size(job))}
    failed: int | None = None
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status and failed is None:
            failed = rank
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    if failed is not None:
        (scratch / "failed").write_text(str(failed))
    return 0 if failed is None else 1


def _world_size(job: dict[str, Any]) -> int:
    return int(job.get("tp", 1)) * int(job.get("pp", 1)) * int(job.get("ep", 1))


def _import_heavy_modules() -> None:
    from . import shims

    shims.install()
    from . import steps  # noqa: F401


def _fork_rank(job: dict[str, Any], rank: int, scratch: Path) -> int:
    """Fork one rank; returns its process id in the parent and never returns in the child."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _be_rank(job, rank, scratch)
    return pid


def _be_rank(job: dict[str, Any], rank: int, scratch: Path) -> NoReturn:
    with (scratch / f"output-{rank}.txt").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        _run_steps(job, rank, scratch)
        code = 0
    except (Exception, SystemExit):
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_steps(job: dict[str, Any], rank: int, scratch: Path) -> None:
    """Run the job's steps in order and write the list of this rank's results."""
    import torch

    from . import shims, steps
    from .sharding import Layout

    torch.set_num_threads(1)
    layout = Layout(int(job.get("tp", 1)), int(job.get("pp", 1)), int(job.get("ep", 1)))
    shims.start_process_group(rank, layout, scratch / "rendezvous")
    results = []
    for number, step in enumerate(job["steps"]):
        started = time.monotonic()
        print(f"step {number}: {json.dumps(step)}", flush=True)
        result = steps.run_step(step, layout)
        results.append({"kind": step["kind"], "seconds": time.monotonic() - started, **result})
    (scratch / f"result-{rank}.json").write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), Path(sys.argv[2])))
