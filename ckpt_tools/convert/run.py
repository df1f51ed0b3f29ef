"""Running a conversion: open, decide, plan, write, finish atomically, verify."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ..checks import MTP_UNMAPPED
from ..engine.execute import Timing
from ..engine.memory import expected_peak
from ..engine.output import check_space, check_target, space_for, to_write
from ..engine.ranks import ALONE, Ranks
from ..errors import CkptError, UsageProblem, error
from ..families.limits import inexpressible, inexpressible_rope
from ..model import Model, describe, open_store
from ..report import Outcome, Report
from .companions import Companions, companions_of
from .duplicates import settle_duplicates
from .mtp import mtp_to_write
from .options import HF, MTP_DROP, TORCH_DIST, Options, Result
from .plan import Plan
from .to_hf import plan_hf
from .to_megatron import plan_megatron
from .writing import Starting, is_checkpoint, write


def convert(
    source: Path, target: Path, options: Options, starting: Starting | None = None, ranks: Ranks = ALONE
) -> Outcome[Result]:
    """Convert `source` into the other format at `target`.

    `starting(total_bytes)` is called before writing and may return a progress callback. Raises CkptError and its kinds;
    on failure nothing is left at `target`, and what an interrupted run has written to `target.partial` is continued. Of several
    `ranks` each writes its share; the result of rank 0 alone is complete.
    """
    began = time.perf_counter()
    check_target(source, target, options.overwrite, is_checkpoint)
    model = _open(source, options)
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
    companions = companions_of(model, options, to, report)
    plan = plan_megatron(model, mtp, options) if model.is_hf else plan_hf(model, mtp, options, duplicates)
    _remark(model, report)
    result = _result(source, target, to, model, plan, options, companions)
    if options.dry_run:
        _remark_space(target, plan, report)
        return Outcome(result, report.findings)
    timing = write(model, plan, options, duplicates, companions, result, starting or _silent, ranks)
    _record(result, timing, began)
    return Outcome(result, report.findings)


def _open(source: Path, options: Options) -> Model:
    """As `open_model`; layers that are to be left out need no place."""
    model = describe(open_store(source), options.hf_config, options.variants)
    report = model.store.report
    if options.mtp in (MTP_DROP, 0):
        report.findings = [
            replace(finding, severity="warning", fix="") if finding.code == MTP_UNMAPPED else finding
            for finding in report.findings
        ]
    report.raise_errors()
    return model


def _silent(total: int) -> None:
    """No progress is shown."""


def _record(result: Result, timing: Timing, began: float) -> None:
    total = time.perf_counter() - began
    result.timing = {"write_s": timing.write_s, "write_cpu_s": timing.write_cpu_s, "total_s": total}


def _remark_space(target: Path, plan: Plan, report: Report) -> None:
    """A dry run tells of a full disk and goes on: the plan itself is right."""
    try:
        check_space(target, to_write(target, plan.program.nbytes))
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


def _result(
    source: Path, target: Path, to: str, model: Model, plan: Plan, options: Options, companions: Companions
) -> Result:
    needed, free, _ = space_for(target, to_write(target, plan.program.nbytes))
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
        nbytes_read=plan.program.nbytes_read,
        memory=expected_peak(plan.program),
        disk_needed=needed,
        disk_free=free,
        carried=plan.carried,
        sidecars=[str(path) for path in companions.files],
        absent=list(companions.absent),
    )
