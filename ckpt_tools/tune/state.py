"""Checkpoints of a tuning run: what accelerate saves, and beside it what was generated and how the rounds went."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CkptError, OutputExists, error
from .samples import Sample

Entry = TypeVar("Entry")
ROUND, PARTIAL, LOCK = "round-", ".partial", ".lock"
FINGERPRINT = "run.json"


@dataclass(frozen=True, slots=True)
class State:
    """`folder` holds one `round-N` directory, the newest. `fingerprint` says what run it is: target, head, text,
    settings."""

    folder: Path
    fingerprint: Mapping[str, Any]

    def newest(self) -> Path | None:
        """The last complete checkpoint."""
        found = [path for path in self.folder.glob(ROUND + "*") if path.name.removeprefix(ROUND).isdigit()]
        return max(found, key=lambda path: int(path.name.removeprefix(ROUND)), default=None)


@contextmanager
def claimed(state: State) -> Iterator[None]:
    """Keep other runs out of the folder; raises OutputExists while one is in it. The lock dies with its process."""
    from filelock import FileLock, Timeout

    state.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state.folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as problem:
        raise error(
            OutputExists,
            "state-busy",
            "another run keeps its checkpoints there",
            where=str(state.folder),
            expected="one run for one folder of checkpoints",
            actual=f"{LOCK} is locked",
            fix="wait for the other run, or choose another --state folder",
        ) from problem
    try:
        yield
    finally:
        lock.release()


def check_free(state: State) -> None:
    """Raise OutputExists if there is a checkpoint that a new run would overwrite."""
    if (newest := state.newest()) is not None:
        raise error(
            OutputExists,
            "state-exists",
            "checkpoints of an earlier run are there",
            where=str(state.folder),
            expected="no checkpoints",
            actual=newest.name,
            fix="--resume goes on from there; remove the folder to start anew",
        )


def write_state(state: State, accelerator: Any, kept: Sequence[Sequence[Sample]], history: Sequence[Any]) -> None:
    """Save beside the old checkpoint, then put the new one in its place. Every process must call this."""
    done = state.folder / f"{ROUND}{len(history)}"
    partial = done.with_name(done.name + PARTIAL)
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / FINGERPRINT).write_text(json.dumps(dict(state.fingerprint), indent=2), encoding="utf-8")
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    progress = {
        "kept": [[(sample.ids, sample.prompt) for sample in samples] for samples in kept],
        "history": [asdict(entry) for entry in history],
    }
    _progress(partial, accelerator).write_text(json.dumps(progress), encoding="utf-8")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        older = state.newest()
        partial.rename(done)
        if older is not None:
            shutil.rmtree(older)
    accelerator.wait_for_everyone()


def read_state(state: State, accelerator: Any, entry: Callable[..., Entry]) -> tuple[list[list[Sample]], list[Entry]]:
    """Load the newest checkpoint into what `accelerator` prepared; returns (samples by round, history made with `entry`).

    Raises CkptError if there is none, if it cannot be read, or if it is of another run or of another number of processes.
    """
    newest = state.newest()
    if newest is None:
        raise error(
            CkptError,
            "state-missing",
            "there is no checkpoint to go on from",
            where=str(state.folder),
            expected=f"{ROUND}N",
            actual="none",
            fix="start without --resume",
        )
    with _readable(newest):
        saved = dict(json.loads((newest / FINGERPRINT).read_text(encoding="utf-8")))
    _check_same(state, newest, saved)
    with _readable(newest):
        progress = json.loads(_progress(newest, accelerator).read_text(encoding="utf-8"))
        kept = [[Sample(tuple(ids), prompt) for ids, prompt in samples] for samples in progress["kept"]]
        history = [entry(**fields) for fields in progress["history"]]
        accelerator.load_state(str(newest))
    return kept, history


@contextmanager
def _readable(newest: Path) -> Iterator[None]:
    """Raises CkptError for whatever json, torch, safetensors and pickle say of damaged files."""
    try:
        yield
    except Exception as problem:
        raise error(
            CkptError,
            "state-damaged",
            "the checkpoint cannot be read",
            where=str(newest),
            expected="the files that a round leaves",
            actual=f"{type(problem).__name__}: {problem}",
            fix="remove the folder to start anew",
        ) from problem


def _progress(folder: Path, accelerator: Any) -> Path:
    return folder / f"progress-{accelerator.process_index}.json"


def _check_same(state: State, newest: Path, saved: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(dict(state.fingerprint)))
    differing = sorted(name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name))
    if differing:
        raise error(
            CkptError,
            "state-of-another-run",
            f"the checkpoint is of a run with another {', '.join(differing)}",
            where=str(newest),
            expected=", ".join(f"{name} {saved.get(name)}" for name in differing),
            actual=", ".join(f"{name} {now.get(name)}" for name in differing),
            fix="resume with what the run began with, or start anew in another --state folder",
        )
