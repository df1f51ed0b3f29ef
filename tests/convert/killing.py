"""Convert with a SIGKILL at the n-th write or change of a directory, again and again, until a run is left alone.

python -m tests.convert.killing SOURCE TARGET OPTIONS KILLS: OPTIONS is JSON for `Options`, KILLS a JSON list of numbers. Every
run is a fork, with limits so small that a tiny model is hundreds of tasks. Prints a JSON list of [exit status, tasks begun].
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import execute as execute_module
from ckpt_tools.engine import program as program_module

CALLS = ("pwrite", "copy_file_range", "open", "mkdir", "rename", "replace", "rmdir", "unlink", "ftruncate")
LIMITS = {"SMALL": 64, "GATHER": 512, "PIECE": 256}


def deadly(name: str, numbers: Any, kill: int) -> Callable[..., Any]:
    """The call of that name; the `kill`-th of all calls is half done, done or not begun when the process dies."""
    real = getattr(os, name)

    def call(*arguments: Any, **named: Any) -> Any:
        number = next(numbers)
        if number < kill:
            return real(*arguments, **named)
        if name == "pwrite":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
        elif number % 2:
            real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return call


def one_run(source: Path, target: Path, options: Options, kill: int, report: int) -> None:
    """In a fork: convert, and die at call `kill`; every task that begins is a byte in the pipe `report`."""
    run, write = execute_module._Worker.run, os.write

    def reporting(self: Any, task: Any) -> int:
        write(report, b".")
        return run(self, task)

    numbers = itertools.count()
    for name in CALLS:
        setattr(os, name, deadly(name, numbers, kill))
    with (
        mock.patch.multiple(program_module, **LIMITS),
        mock.patch.multiple(execute_module, BUFFER=LIMITS["GATHER"] + LIMITS["SMALL"], TRANSFORM=128, THREADS=2),
        mock.patch.object(execute_module._Worker, "run", reporting),
    ):
        convert(source, target, options)


def forked(*arguments: Any) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            one_run(*arguments, writing)
            os._exit(0)
        except BaseException as problem:  # the parent's stack is none of the child's business
            os.write(2, f"{problem!r}\n".encode())
            os._exit(1)
    os.close(writing)
    tasks = 0
    while got := os.read(reading, 1 << 16):
        tasks += len(got)
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), tasks


def main() -> None:
    source, target, options, kills = sys.argv[1:]
    chosen = Options(**json.loads(options))
    if chosen.quantize or chosen.dtype:
        import torch  # noqa: F401 (once, not in every fork)
    runs = []
    for kill in [*json.loads(kills), sys.maxsize]:
        runs.append(forked(Path(source), Path(target), chosen, kill))
        if runs[-1][0] == 0 or Path(target).exists():  # one that died after the last rename has left a whole output
            break
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
