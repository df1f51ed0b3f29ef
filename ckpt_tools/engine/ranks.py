"""Several processes on one program, as torchrun starts them: who does what, and how all end together.

They talk through the key-value store of torch's rendezvous alone: a collective would hang where one rank has failed. Each
rank has a thread that says that it lives and listens whether another has failed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CkptError, ExitCode, Finding, error
from .background import beside

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

JOIN_S = 300.0  # for all ranks to come
BEAT_S = 0.5
LOST_S = 60.0  # without a sign of life
STOP_S = 15.0  # for the others to stop, and for rank 0 to speak
VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # the second only where processes are many
FAILED, SPOKEN = "failed", "spoken"


class Failure(NamedTuple):
    """What a rank says when it fails. `lasting`: what is written is worth keeping."""

    rank: int
    findings: tuple[Finding, ...]
    exit_code: int
    lasting: bool


class Elsewhere(CkptError):
    """Another rank has failed; with its findings and exit code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(*failure.findings)
        self.failure, self.exit_code = failure, ExitCode(failure.exit_code)


Explain = Callable[[BaseException], Failure]


def several() -> bool:
    """Whether a launcher has started this process as one of many."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def processes_here() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if several() else 1


@dataclass
class Ranks:
    """One of `size` ranks; alone, where there is no store, every message is its own."""

    rank: int = 0
    size: int = 1
    store: Store | None = None
    explain: Explain | None = None
    progress: Callable[[int], None] | None = None
    written: int = 0
    failure: Failure | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def tell(self, key: str, value: str = "") -> None:
        if self.store is not None:
            self.store.set(key, value)

    def hear(self, key: str) -> str:
        """What a rank tells under `key`, as soon as it does; raises Elsewhere if one fails meanwhile."""
        if self.store is None:
            return ""
        pause = 0.005
        try:
            while not self.store.check([key]):
                self.check()
                time.sleep(pause)
                pause = min(0.2, pause * 1.5)
            return self.store.get(key).decode()
        except RuntimeError as problem:  # the store went down with its process
            raise Elsewhere(_lost(0)) from problem

    def gather(self, key: str, value: str) -> list[str]:
        """The values of all ranks in their order."""
        if self.store is None:
            return [value]
        self.tell(f"{key}/{self.rank}", value)
        return [self.hear(f"{key}/{rank}") for rank in range(self.size)]

    def check(self) -> None:
        """Raise Elsewhere if another rank has failed."""
        if self.failure is not None:
            raise Elsewhere(self.failure)

    def add(self, nbytes: int) -> None:
        """Count bytes that this rank has written; raises Elsewhere if another rank has failed."""
        self.check()
        with self.lock:
            self.written += nbytes

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Where the block fails, tell the others, and go on failing when they have stopped."""
        try:
            yield
        except BaseException as problem:
            self.abort(problem)
            raise

    def abort(self, problem: BaseException) -> None:
        """Tell of a failure, unless another rank was faster, and that this rank has stopped; rank 0 waits for the others."""
        if self.store is None or self.explain is None:
            return
        if self.failure is None:
            self.failure = self.explain(problem)
            if self.store.add("failures", 1) == 1:
                self.tell(FAILED, _packed(self.failure, self.rank))
        self.tell(f"stopped/{self.rank}")
        if self.first:
            self._wait([f"stopped/{rank}" for rank in range(self.size)])

    def part(self) -> bool:
        """The last word: rank 0 says that it has told the user, and stays until the others know, as the store may be its own.

        Returns, on another rank, whether rank 0 said so in time.
        """
        if self.store is None:
            return True
        if self.first:
            self.tell(SPOKEN)
            return self._wait([f"heard/{rank}" for rank in range(1, self.size)])
        heard = self._wait([SPOKEN])
        if heard:
            self.tell(f"heard/{self.rank}")
        return heard

    def _wait(self, keys: list[str]) -> bool:
        assert self.store is not None
        until = time.monotonic() + STOP_S
        while time.monotonic() < until:
            try:
                if self.store.check(keys):
                    return True
            except RuntimeError:  # the store went down with its process
                return False
            time.sleep(0.02)
        return False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A thread that beats and listens while the block runs; rank 0 shows what the others have written."""
        if self.store is None:
            yield
            return
        with beside(self._watch):
            yield

    def _watch(self, stop: threading.Event) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank] if self.first else [0]
        heard = {rank: ("", time.monotonic()) for rank in others}
        shown, beats = 0, 0
        try:
            while not stop.wait(BEAT_S):
                beats += 1
                self._beat(beats, heard)
                if self.progress is not None:
                    total = sum(int(beat.split()[1]) for beat, _ in heard.values() if beat)
                    self.progress(total - shown)
                    shown = total
        except RuntimeError:  # the store went down with its process
            self.failure = self.failure or _lost(0)

    def _beat(self, number: int, heard: dict[int, tuple[str, float]]) -> None:
        """Give a sign of life, and see who has failed and who has not changed its own sign for long."""
        assert self.store is not None
        self.store.set(f"beat/{self.rank}", f"{number} {self.written}")
        if self.failure is None and self.store.check([FAILED]):
            self.failure = _unpacked(self.store.get(FAILED).decode())
        for rank, (last, since) in heard.items():
            beat = self.store.get(f"beat/{rank}").decode() if self.store.check([f"beat/{rank}"]) else ""
            if beat != last:
                heard[rank] = (beat, time.monotonic())
            elif time.monotonic() - since > LOST_S:
                self.failure = self.failure or _lost(rank)


ALONE = Ranks()


def join(explain: Explain) -> Ranks:
    """Meet the other ranks; raises CkptError if they do not come."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # sockets that have no name are no news
    from torch.distributed import DistError
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    except (DistError, RuntimeError, ValueError) as problem:
        raise error(
            CkptError,
            "ranks-do-not-meet",
            "the ranks did not all come",
            where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, rank {os.environ['RANK']}",
            expected=f"{os.environ['WORLD_SIZE']} ranks within {JOIN_S:.0f} s",
            actual=str(problem).splitlines()[0],
            fix="start as many ranks as WORLD_SIZE says, on machines that reach MASTER_ADDR; or unset WORLD_SIZE to run alone",
        ) from problem
    return Ranks(rank, size, store, explain)


def _packed(failure: Failure, rank: int) -> str:
    named = [
        replace(finding, where=f"{finding.where or 'nowhere in particular'} {_on(rank)}")
        for finding in failure.findings
    ]
    return json.dumps([rank, [asdict(finding) for finding in named], failure.exit_code, failure.lasting])


def _unpacked(text: str) -> Failure:
    rank, findings, code, lasting = json.loads(text)
    return Failure(rank, tuple(Finding(**finding) for finding in findings), code, lasting)


def _on(rank: int) -> str:
    return f"(rank {rank} on {socket.gethostname()})"


def _lost(rank: int) -> Failure:
    finding = Finding(
        "rank-lost",
        f"rank {rank} gives no sign of life",
        expected=f"one within {LOST_S:.0f} s",
        fix="see what happened on its machine, and run it again: it continues where it stopped",
    )
    return Failure(rank, (finding,), ExitCode.FAILED, True)
