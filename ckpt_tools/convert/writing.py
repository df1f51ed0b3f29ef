"""Writing a planned conversion: journal, execution, what goes beside the weights, and the name at the end."""

from __future__ import annotations

import json
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..compare import Logical, compare_logical
from ..engine.execute import THREADS, Progress, Share, Timing, execute, make_files
from ..engine.journal import Journal, boot, stamp_of
from ..engine.output import output_directory, partial_of, write_failed
from ..engine.program import Program, Task
from ..engine.ranks import Ranks, processes_here
from ..engine.shares import share_of
from ..errors import CkptError, error
from ..model import Model, open_model
from ..report import listed
from ..stores.hf_folder import is_hf_folder
from ..stores.torch_dist.reader import RELEASE, TRACKER, is_torch_dist
from .companions import Companions
from .finish import finish
from .options import TORCH_DIST, Options, Result
from .plan import Plan

Starting = Callable[[int], Callable[[int], None] | None]


def is_checkpoint(path: Path) -> bool:
    return is_torch_dist(path) or is_hf_folder(path)


def write(
    model: Model,
    plan: Plan,
    options: Options,
    duplicates: set[str],
    companions: Companions,
    result: Result,
    starting: Starting,
    ranks: Ranks,
) -> Timing:
    """Write the plan to `result.destination` and complete `result`; continues what an interrupted run has left.

    Raises CkptError and its kinds. An interrupt or a failing system leaves `.partial` to be continued, anything else nothing.
    """
    target = Path(result.destination).resolve()
    partial = partial_of(target)
    root = partial / RELEASE if result.to == TORCH_DIST else partial
    work = _prepared(plan.program, partial, root, options.overwrite, ranks)
    if not ranks.first:
        return _follow(work, ranks)
    progress = ranks.progress = starting(plan.program.nbytes)
    written = output_directory(target, plan.program.nbytes, work.journal, options.overwrite, is_checkpoint)
    with written, ranks.stopping():
        timing, result.resumed = _lead(work, ranks, progress)
        work.journal.check_sources()
        finish(model, plan, options, root, duplicates, companions)
        if result.to == TORCH_DIST:
            (partial / TRACKER).write_text(RELEASE)
        if options.verify:
            _verify(model, plan, options, partial, result)
    ranks.tell("finished")
    return timing


class _Work(NamedTuple):
    """The program cut into numbered tasks, and where they are written. `boots` are those of all machines at work."""

    program: Program
    tasks: list[tuple[int, Task]]
    root: Path
    journal: Journal
    boots: set[str]

    def share(self, ranks: Ranks) -> Share:
        """What is left of this rank's share."""
        left = [(number, task) for number, task in self.tasks if not self.journal.done[number]]

        def finished(number: int, task: Task) -> None:
            self.journal.mark(number, task)
            ranks.add(task.nbytes)

        threads = max(1, THREADS // processes_here())
        return Share(share_of(left, ranks.rank, ranks.size), finished, ranks.first, threads)


def _prepared(program: Program, partial: Path, root: Path, overwrite: bool, ranks: Ranks) -> _Work:
    """Raises CkptError where the ranks do not plan the same."""
    tasks = list(enumerate(program.tasks()))
    stamp = stamp_of(program, (task for _, task in tasks))
    journal = Journal(partial, stamp, [(root / name, size) for name, size in program.image.files], overwrite)
    said = [json.loads(text) for text in ranks.gather("plan", json.dumps([stamp.plan, str(partial), boot()]))]
    if others := [rank for rank, (plan, where, _) in enumerate(said) if [plan, where] != [stamp.plan, str(partial)]]:
        raise error(
            CkptError,
            "ranks-disagree",
            "the ranks do not plan the same conversion",
            where=f"rank {ranks.rank} of {ranks.size}",
            expected=f"plan {stamp.plan[:12]} to {partial}",
            actual=listed(f"rank {rank}: plan {said[rank][0][:12]} to {said[rank][1]}" for rank in others),
            fix="the same source, destination and version of ckpt-tools on every machine",
        )
    return _Work(program, tasks, root, journal, {machine for _, _, machine in said})


def _lead(work: _Work, ranks: Ranks, progress: Progress | None) -> tuple[Timing, int]:
    """Rank 0: say what is done already, do its share, and wait for the others; returns also the bytes that were done."""
    started = time.perf_counter()
    work.journal.open(0, work.boots)
    make_files(work.program, work.root)
    ranks.tell("begin", b64encode(zlib.compress(work.journal.done)).decode())
    resumed = sum(task.nbytes for number, task in work.tasks if work.journal.done[number])
    if progress is not None:
        progress(resumed)
    with work.journal.settling():
        timing = execute(work.program, work.root, progress, work.share(ranks))
        ranks.gather("written", "")
    return replace(timing, write_s=time.perf_counter() - started), resumed


def _follow(work: _Work, ranks: Ranks) -> Timing:
    """Another rank: do its share as soon as rank 0 has prepared the destination, and wait for the end."""
    journal = work.journal
    done = zlib.decompress(b64decode(ranks.hear("begin")))
    if not journal.is_here():
        raise error(
            CkptError,
            "destination-not-shared",
            "the destination that rank 0 has made is not here",
            where=str(journal.partial),
            expected="one file system that all ranks see",
            actual="no such plan",
            fix="write to a shared file system, or run on one machine",
        )
    try:
        journal.open(ranks.rank, work.boots)
        journal.done[:] = done
        with journal.settling():
            timing = execute(work.program, work.root, None, work.share(ranks))
    except OSError as problem:
        raise write_failed(problem, journal.partial, work.program.nbytes, lasting=True) from problem
    ranks.gather("written", "")
    ranks.hear("finished")
    return timing


def _verify(model: Model, plan: Plan, options: Options, partial: Path, result: Result) -> None:
    """Read the output again, from its own metadata, and compare every tensor with the source."""
    written = open_model(partial, variants=options.variants)
    left, right = Logical(model, plan.mtp, exact=options.dtype not in (None, "BF16")), Logical(written)
    try:
        found = compare_logical(left, right, rounded=plan.program.casts)
    finally:
        left.close()
        right.close()
    result.verified = found.same
    if not found.same:
        raise error(
            CkptError,
            "verify-failed",
            "the output differs from the source",
            where=str(partial),
            expected=f"{found.equal + len(found.differences)} equal tensors",
            actual=listed(f"{d.name} {d.status}" for d in found.differences),
            fix="disk or memory may be faulty; if it happens again, report a bug",
        )
