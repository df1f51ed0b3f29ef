"""How much memory a program will take, said before it runs: what the plan takes already, and what threads hold at a time."""

from __future__ import annotations

import resource
from pathlib import Path

from .execute import BUFFER, TRANSFORM, threads_of
from .program import Program

STATUS = Path("/proc/self/status")
TORCH = 180_000_000  # what importing torch takes beyond its files; loaded only to transform values
OWN = 3_000_000  # journal, threads, report
COPIES = 16  # bytes held per source byte while values are transformed: halves, float32, the result, checks
PER_MOVE = 500  # bytes of a move as a task in the queue


def expected_peak(program: Program) -> int:
    """Bytes of anonymous memory, not more than which an execution should take from here on; files are never held."""
    threads = threads_of(program)
    held = BUFFER
    if program.casts:
        held += COPIES * TRANSFORM + max((task.nbytes_read + task.nbytes for task in program.apart), default=0) * 4
    return anonymous() + OWN + threads * held + PER_MOVE * len(program.moves) + (TORCH if program.casts else 0)


def anonymous() -> int:
    """Bytes that this process holds and no file backs."""
    for line in STATUS.read_text().splitlines() if STATUS.is_file() else ():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
