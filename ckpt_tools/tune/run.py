"""`tune-draft`: read target and head, tune, write, register."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..drafts.export import Exported, is_written_head, write_head
from ..drafts.export import Options as Writing
from ..drafts.formats.targets import read_target
from ..drafts.manifest import Tuning
from ..drafts.spec import DraftSpec, open_draft
from ..engine.output import check_target, partial_of
from ..errors import CkptError, Finding, UsageProblem, error
from ..report import Outcome, Report
from ..speculate.build import build_head
from ..speculate.prompts import Texts, read_prompts
from ..speculate.results import Acceptance
from ..speculate.target import load_target
from .samples import Sample, read_samples
from .settings import Settings
from .state import State, check_free, claimed
from .student import Student
from .trainer import Prompts, Round, Source, Trainer
from .tuned import digest, tuned_spec

Said = Callable[[Round], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """`prompts` or `samples`, a file; of the prompts the last `held_out` are only measured, `held_out_prompts` beside them."""

    prompts: str = ""
    samples: Path | None = None
    held_out: int = 0
    held_out_prompts: str = ""


class Entries(NamedTuple):
    """What was read, before anything is a token id: prompts to learn from, prompts held out."""

    prompts: list[Any]
    held_out: list[Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What to tune. `device` "" lets accelerate choose, `dtype` "" is float32 on a CPU and bfloat16 elsewhere. `state` is
    where checkpoints go (None: nowhere)."""

    target: Path
    draft: Path
    out: Path
    reading: Reading
    settings: Settings = field(default_factory=Settings)
    writing: Writing = field(default_factory=Writing)
    hf_config: Path | None = None
    state: Path | None = None
    resume: bool = False
    device: str = ""
    dtype: str = ""


@dataclass(slots=True)
class TunedHead:
    """`before` and `after` are measured greedily on the prompts held out (null without any). `target_unchanged`: every
    parameter and buffer of the target had the same bits after tuning as before (null in a dry run)."""

    target: str
    draft: str
    destination: str
    kind: str
    dry_run: bool
    device: str = ""
    processes: int = 1
    resumed_at: int = 0
    trainable: int = 0
    target_unchanged: bool | None = None
    before: Acceptance | None = None
    after: Acceptance | None = None
    rounds: list[Round] = field(default_factory=list)
    written: Exported | None = None
    registered: str = ""


def tune(job: Job, said: Said = lambda done: None) -> Outcome[TunedHead]:
    """Tune a head and write it; `said` hears of every round. Raises CkptError and its kinds; then nothing is left at OUT,
    and checkpoints stay."""
    _check_places(job)
    spec = open_draft(job.draft, job.hf_config, job.writing.form).dequantised()
    goal = read_target(job.target, job.writing.target_name)
    planned = write_head(spec, job.out, goal, replace(job.writing, dry_run=True))  # what cannot be written is not tuned
    report = Report(list(planned.findings))
    entries = _entries(job.reading)
    result = TunedHead(str(job.target), str(job.draft), str(job.out), spec.kind, job.writing.dry_run)
    if job.writing.dry_run:
        result.written = planned.result
        return Outcome(result, report.findings)
    trainer, held_out, state, unmoved = _set_up(job, spec, entries)
    result.device, result.processes = str(trainer.accelerator.device), trainer.accelerator.num_processes
    result.trainable = sum(p.numel() for p in trainer.head.parameters())
    leads = trainer.accelerator.is_main_process
    with claimed(state) if state is not None and leads else nullcontext():
        if state is not None and not job.resume:
            check_free(state)
        result.before = trainer.measure(held_out)
        if job.resume and state is not None:
            trainer.resume(state)
            result.resumed_at = len(trainer.history)
        trainer.run(state, said)
        result.rounds = trainer.history
        result.after = trainer.measure(held_out)
        result.target_unchanged = digest(trainer.target.model) == unmoved
        _check_unchanged(result)
        report.findings += _lessons(result)
        if leads:
            _write(job, spec, trainer, result)
    trainer.accelerator.wait_for_everyone()
    return Outcome(result, report.findings)


def _check_places(job: Job) -> None:
    """Raises CkptError unless OUT may be written and no checkpoint lies where it is."""
    for other in (job.target, job.draft):
        check_target(other, job.out, job.writing.overwrite, is_written_head)
    if job.state is None:
        return
    out, state = job.out.resolve(), job.state.resolve()
    for place in (out, partial_of(out)):
        if place == state or place in state.parents or state in place.parents:
            raise error(
                UsageProblem,
                "state-in-output",
                "checkpoints and destination contain each other",
                where=str(job.state),
                expected=f"a folder beside {job.out}",
                actual=f"{state} and {place}",
                fix="choose another --state folder",
            )


def _entries(reading: Reading) -> Entries:
    """Raises CkptError if there is nothing to learn from."""
    held = read_prompts(reading.held_out_prompts) if reading.held_out_prompts else []
    if reading.samples is not None:
        if reading.held_out:
            raise error(
                UsageProblem,
                "samples-held-out",
                "samples are learned from, all of them",
                where=str(reading.samples),
                expected="no --held-out with --samples",
                actual=f"--held-out {reading.held_out}",
                fix="give what is only measured as --held-out-prompts FILE",
            )
        return Entries([], held)
    if not reading.prompts:
        raise error(UsageProblem, "texts-missing", "nothing to learn from", fix="--prompts FILE or --samples FILE")
    prompts = read_prompts(reading.prompts)
    kept = max(len(prompts) - reading.held_out, 0)
    if not kept:
        raise _nothing(reading.prompts, f"{len(prompts)} prompts, all of them held out")
    return Entries(prompts[:kept], [*held, *prompts[kept:]])


def _nothing(where: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "texts-missing",
        "nothing to learn from is left",
        where=where,
        expected="at least one prompt that is not held out, or one sample with a response",
        actual=actual,
        fix="give more texts, or a smaller --held-out",
    )


def _source(reading: Reading, entries: Entries, texts: Texts) -> Source:
    samples: list[Sample] = []
    if reading.samples is not None:
        samples = read_samples(reading.samples, texts.tokenizer, texts.target.vocab_size)
        if not samples:
            raise _nothing(str(reading.samples), "no sample with a response")
    return Source([texts.prompt(entry).ids for entry in entries.prompts], texts.stop, samples)


class SetUp(NamedTuple):
    """A trainer that is ready, prompts held out, where checkpoints go, and the target's digest before anything ran."""

    trainer: Trainer
    held_out: Prompts
    state: State | None
    unmoved: str


def _set_up(job: Job, spec: DraftSpec, entries: Entries) -> SetUp:
    import torch

    choices = {"float32": ("no", torch.float32), "bfloat16": ("bf16", torch.bfloat16)}
    cuda = torch.cuda.is_available() and job.device != "cpu"
    precision, dtype = choices[job.dtype or ("bfloat16" if cuda else "float32")]
    accelerator = _accelerator(not cuda, precision)
    torch.manual_seed(job.settings.seed)
    target = load_target(job.target, str(accelerator.device), dtype)
    drafter, head = build_head(spec, target), build_head(spec, target).float().requires_grad_(True)
    unmoved = digest(target.model)
    run = {"target": unmoved, "head": digest(head), "processes": accelerator.num_processes, "precision": precision}
    student = Student(head, job.settings.steps, job.settings.decay)
    texts = Texts(target)
    source, held_out = _source(job.reading, entries, texts), [texts.prompt(entry).ids for entry in entries.held_out]
    run["text"] = source.digest()
    saves = job.settings.save_every or job.resume
    state = State(job.state, {**run, **job.settings.fingerprint()}) if job.state and saves else None
    return SetUp(Trainer(accelerator, target, drafter, job.settings, source, student), held_out, state, unmoved)


def _accelerator(cpu: bool, precision: str) -> Any:
    try:
        from accelerate import Accelerator
    except ModuleNotFoundError as problem:
        raise error(
            UsageProblem,
            "extra-missing",
            "tuning needs accelerate",
            expected="the extra `tune`",
            actual=str(problem),
            fix="pip install 'ckpt-tools[tune]'",
        ) from problem
    return Accelerator(cpu=cpu, mixed_precision=precision)


def _check_unchanged(result: TunedHead) -> None:
    """The head was tuned for the weights that were read; if they moved, it is for nobody."""
    if not result.target_unchanged:
        raise error(
            CkptError,
            "target-moved",
            "the target in memory is not what was loaded",
            where=result.target,
            expected="every parameter and buffer as before tuning",
            actual="another digest",
            fix="this is a bug: report it with the command",
        )


def _lessons(result: TunedHead) -> Sequence[Finding]:
    if result.before is None or result.after is None or result.after.accept_length > result.before.accept_length:
        return []
    return [
        Finding(
            "tuning-did-not-help",
            "the tuned head accepts no more than before on the prompts held out",
            expected=f"an accept length above {result.before.accept_length:.3f}",
            actual=f"{result.after.accept_length:.3f}",
            fix="more rounds or prompts, another --learning-rate, or keep the old head",
            severity="warning",
        )
    ]


def _write(job: Job, spec: DraftSpec, trainer: Trainer, result: TunedHead) -> None:
    """Export through the writers of every other head."""
    settings = job.settings
    tuning = Tuning(
        rounds=len(result.rounds),
        updates=sum(done.updates for done in result.rounds),
        processes=result.processes,
        tokens=sum(done.tokens for done in result.rounds),
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        temperature=settings.temperature,
        seed=settings.seed,
        accept_length_before=result.before.accept_length if result.before else None,
        accept_length_after=result.after.accept_length if result.after else None,
    )
    out = job.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        tuned = tuned_spec(spec, trainer.head, Path(folder))
        target = read_target(job.target, job.writing.target_name)
        result.written = write_head(tuned, job.out, target, replace(job.writing, tuning=tuning)).result
