"""python -m tests.convert.one_rank FAULT WORDS: the command line as one rank, with a fault on rank FAULT_RANK (0 if unset)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import Any

from ckpt_tools.cli import cli
from ckpt_tools.cli.boundary import run
from ckpt_tools.engine import execute as execute_module
from ckpt_tools.engine import program as program_module
from ckpt_tools.engine import ranks as ranks_module
from ckpt_tools.engine.journal import Journal

AFTER = 5  # tasks
LIMITS = {"SMALL": 64, "GATHER": 512, "PIECE": 512}  # so that a tiny model is many tasks


def fault(kind: str) -> None:
    if kind == "disk-full":
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")
    if kind == "bug":
        raise RuntimeError("a bug")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def main(kind: str, words: list[str]) -> int:
    faulty = os.environ["RANK"] == os.environ["FAULT_RANK"]
    for name, value in LIMITS.items():
        setattr(program_module, name, value)
    execute_module.BUFFER, execute_module.TRANSFORM = 1024, 512
    ranks_module.JOIN_S = 3.0 if kind == "absent" else 60.0
    ranks_module.LOST_S = 4.0 if kind == "kill" else 60.0
    ranks_module.BEAT_S, ranks_module.STOP_S = 0.05, 5.0 if kind == "kill" else 30.0
    work, tasks = execute_module._Worker.run, [0]

    def failing(self: Any, task: Any) -> int:
        tasks[0] += 1
        if kind and faulty and tasks[0] > AFTER:
            fault(kind)
        if kind:
            time.sleep(0.003)  # so that the others are at work when it happens
        return work(self, task)

    execute_module._Worker.run = failing  # type: ignore[method-assign]
    if kind == "not-shared" and faulty:
        Journal.is_here = lambda self: False  # type: ignore[method-assign]
    if kind == "bad-source" and faulty:
        words[1] += "-that-is-not-here"
    return run(cli, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
