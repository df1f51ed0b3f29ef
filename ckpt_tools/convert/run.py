"""Running a conversion: open, decide, plan, write, finish atomically, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..compare import Logical, compare_logical
from ..engine.execute import Timing, execute
from ..engine.output import check_space, check_target, output_directory
from ..errors import CkptError, UsageProblem, error
from ..families.limits import inexpressible, inexpressible_rope
from ..model import Model, open_model
from ..report import Outcome, Report, listed
from ..stores.hf_folder import is_hf_folder
from ..stores.torch_dist.reader import RELEASE, TRACKER, is_torch_dist
from .duplicates import settle_duplicates
from .finish import finish
from .mtp import mtp_to_write
from .options import HF, TORCH_DIST, Options, Result
from .plan import Plan
from .to_hf import plan_hf
from .to_megatron import plan_megatron

Starting = Callable[[int], Callable[[int], None] | None]


def is_checkpoint(path: Path) -> bool:
    return is_torch_dist(path) or is_hf_folder(path)


def convert(source: Path, target: Path, options: Options, starting: Starting | None = None) -> Outcome[Result]:
    """Convert `source` into the other format at `target`.

    `starting(total_bytes)` is called before writing and may return a progress callback. Raises CkptError and its kinds;
    on failure nothing is left at `target`.
    """
    began = time.perf_counter()
    check_target(source, target, options.overwrite, is_checkpoint)
    model = open_model(source, options.hf_config, options.variants)
    to = TORCH_DIST if model.is_hf else HF
    if options.to not in (None, to):
        raise error(
            UsageProblem,
            "direction",
            f"{source} is already {options.to}",
            where=str(source),
            expected=f"--to {to}",
            actual=f"--to {options.to}",
            fix="leave --to out; the direction is read from the source",
        )
    mtp = mtp_to_write(model, options.mtp)
    report = Report(list(model.store.report.findings))
    duplicates = settle_duplicates(model, options, report)
    plan = plan_megatron(model, mtp, options) if model.is_hf else plan_hf(model, mtp, options, duplicates)
    _remark(model, report)
    result = _result(source, target, to, model, plan, options)
    if options.dry_run:
        _remark_space(target, plan, report)
        return Outcome(result, report.findings)
    progress = starting(plan.program.nbytes) if starting else None
    with output_directory(target, plan.program.nbytes) as partial:
        root = partial / RELEASE if to == TORCH_DIST else partial
        timing = execute(plan.program, root, progress)
        result.sidecars = finish(model, plan, options, root, duplicates, report)
        if to == TORCH_DIST:
            (partial / TRACKER).write_text(RELEASE)
        if options.verify:
            _verify(model, plan, options, partial, result)
    _record(result, timing, began)
    return Outcome(result, report.findings)


def _record(result: Result, timing: Timing, began: float) -> None:
    total = time.perf_counter() - began
    result.timing = {"write_s": timing.write_s, "write_cpu_s": timing.write_cpu_s, "total_s": total}


def _remark_space(target: Path, plan: Plan, report: Report) -> None:
    """A dry run tells of a full disk and goes on: the plan itself is right."""
    try:
        check_space(target, plan.program.nbytes)
    except CkptError as problem:
        report.findings += [replace(finding, severity="warning") for finding in problem.findings]


def _remark(model: Model, report: Report) -> None:
    if others := inexpressible(model.dims, plugin=model.family.slime_spec is not None):
        report.warn(
            "model-not-expressible",
            "the weights convert, but Megatron's arguments do not state all of this model",
            where=str(model.config_path),
            expected="a model that Megatron's arguments can say",
            actual="; ".join(others),
            fix="build it in your model provider",
        )
    if problems := inexpressible_rope(model.dims):
        report.warn(
            "rope-not-expressible",
            "the weights convert, but no Megatron argument states this rope",
            where=str(model.config_path),
            expected="a rope that Megatron's arguments can say",
            actual="; ".join(problems),
            fix="set the rope in your model provider",
        )


def _result(source: Path, target: Path, to: str, model: Model, plan: Plan, options: Options) -> Result:
    return Result(
        source=str(source),
        destination=str(target),
        to=to,
        family=model.family.name,
        mtp_found=model.mtp,
        mtp_written=plan.mtp,
        tensors=len(plan.program.image.tensors),
        nbytes=plan.program.nbytes,
        files=len(plan.program.image.files),
        layout=plan.layout,
        vocab_size=model.dims.vocab_size,
        padded_vocab_size=plan.padded_vocab,
        dry_run=options.dry_run,
    )


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
