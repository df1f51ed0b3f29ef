"""Writing a planned conversion: journal, execution, what goes beside the weights, and the name at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..compare import Logical, compare_logical
from ..engine.execute import Share, Timing, execute
from ..engine.journal import Journal, stamp_of
from ..engine.output import output_directory, partial_of
from ..errors import CkptError, error
from ..model import Model, open_model
from ..report import Report, listed
from ..stores.torch_dist.reader import RELEASE, TRACKER
from .finish import finish
from .options import TORCH_DIST, Options, Result
from .plan import Plan

Starting = Callable[[int], Callable[[int], None] | None]


def write(
    model: Model, plan: Plan, options: Options, duplicates: set[str], report: Report, result: Result, starting: Starting
) -> Timing:
    """Write the plan to `result.destination` and complete `result`; continues what an interrupted run has left.

    Raises CkptError and its kinds. An interrupt or a failing system leaves `.partial` to be continued, anything else nothing.
    """
    target = Path(result.destination).resolve()
    partial, program = partial_of(target), plan.program
    root = partial / RELEASE if result.to == TORCH_DIST else partial
    tasks = list(enumerate(program.tasks()))
    stamp = stamp_of(program, (task for _, task in tasks))
    journal = Journal(partial, stamp, [(root / name, size) for name, size in program.image.files], options.overwrite)
    progress = starting(program.nbytes)
    with output_directory(target, program.nbytes, journal):
        journal.open()
        left = [(number, task) for number, task in tasks if not journal.done[number]]
        result.resumed = sum(task.nbytes for number, task in tasks if journal.done[number])
        if progress is not None:
            progress(result.resumed)
        with journal.settling():
            timing = execute(program, root, progress, Share(left, journal.mark))
        journal.check_sources()
        result.sidecars = finish(model, plan, options, root, duplicates, report)
        if result.to == TORCH_DIST:
            (partial / TRACKER).write_text(RELEASE)
        if options.verify:
            _verify(model, plan, options, partial, result)
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
