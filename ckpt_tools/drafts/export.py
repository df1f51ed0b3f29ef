"""Writing a head: for SGLang or speculators, checked, hashed, verified before it gets its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine.execute import execute
from ..engine.output import check_target, output_directory
from ..errors import CkptError, Finding, UsageProblem, error
from ..model import HF_COPY
from ..report import Outcome, Report
from ..stores.hf_folder import CONFIG
from ..stores.torch_dist.reader import is_torch_dist, iteration_directory
from .checks.pair import Pair, Rules
from .checks.tables import check_tables
from .formats import sglang, speculators
from .formats.native import MEGATRON
from .formats.speculators_mtp import FORM as SPECULATORS_MTP
from .formats.speculators_mtp import with_experts
from .formats.targets import Target, read_target
from .formats.writing import Written, program_of
from .lm_head import with_targets_rows
from .manifest import MANIFEST, Manifest, Provenance, TargetRef, Tuning, hash_files, write_manifest, written_by
from .spec import HEAD, MTP, DraftSpec, open_draft
from .vocab_map import read_ids, with_ids

FORMATS = ("sglang", "speculators")
Starting = Callable[[int], Callable[[int], None] | None]
Verify = Callable[[Path, Path], Sequence[Finding]]  # (written folder, target): runs before the folder gets its name


@dataclass(frozen=True, slots=True)
class Options:
    """`form` says who made the source, `hf_config` is its config where it carries none, `vocab_map` a file
    with the ids of its draft vocabulary where its weights hold none, `lm_head_from_target` gives it the target's rows where
    it has no lm_head. `target_name` is what users call
    the target, `identity` its hashes if they are known. `verify` looks at the finished folder; an error of its own means
    that nothing is left. `tuning` is how a head was trained here before it is written."""

    format: str = "sglang"
    form: str | None = None
    hf_config: Path | None = None
    vocab_map: Path | None = None
    lm_head_from_target: bool = False
    target_name: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    max_shard_size: int = 5_000_000_000
    overwrite: bool = False
    dry_run: bool = False
    verify: Verify | None = None
    tuning: Tuning | None = None


@dataclass(slots=True)
class Exported:
    """What was written. `unchanged` counts files that a merge took over as they are; `source_format` is who made the head."""

    source: str
    destination: str
    target: str
    kind: str
    source_format: str
    format: str
    architecture: str
    tensors: int
    nbytes: int
    files: int
    dry_run: bool
    made: list[str] = field(default_factory=list)
    verified: bool | None = None
    unchanged: int = 0


def export_draft(
    source: Path, out: Path, target: Path, options: Options, starting: Starting | None = None
) -> Outcome[Exported]:
    """Write the head at `source`, of any format, for the model at `target` in `options.format`.

    From a Megatron directory the trained weights are taken, whatever copy of the head the target holds. Raises CkptError
    and its kinds; on failure nothing is left at `out`.
    """
    for other in (source, target):
        check_target(other, out, options.overwrite, is_written_head)
    spec = open_draft(source, config_for(source, target, options), options.form)
    if options.vocab_map:
        spec = with_ids(spec, read_ids(options.vocab_map), options.vocab_map)
    if options.lm_head_from_target:
        spec = with_targets_rows(spec, target)
    goal = read_target(target, options.target_name)
    if options.verify and options.format == sglang.FORM:
        _check_tables(spec, goal, target)
    return write_head(spec, out, goal, options, starting)


def _check_tables(spec: DraftSpec, target: Target, path: Path) -> None:
    """Raises CkptError where the head has a table of its own that would be left out, since SGLang takes the target's."""
    if spec.errors or spec.kind == MTP:
        return
    pair = Pair(spec, target, path, Rules())
    try:
        check_tables(pair)
    finally:
        pair.close()
    if errors := pair.report.errors:
        fix = (
            "serve it with what it was trained for; if it is a table that was never trained, --no-verify leaves it out"
        )
        raise CkptError(*(replace(finding, fix=fix) for finding in errors))


def write_head(
    spec: DraftSpec, out: Path, target: Target, options: Options, starting: Starting | None = None
) -> Outcome[Exported]:
    """Write a head that was read before."""
    report = Report(list(spec.findings))
    check_pair(spec, target, report)
    report.raise_errors(CkptError)
    written = _written(spec, target, options.format, report)
    program = program_of(written, options.max_shard_size)
    result = _result(spec, out, target, written, options)
    if options.dry_run:
        return Outcome(result, report.findings)
    progress = starting(program.nbytes) if starting else None
    with output_directory(out, program.nbytes, None, options.overwrite, is_written_head) as partial:
        execute(program, partial, progress)
        (partial / CONFIG).write_bytes(written.config)
        for path in written.code:
            shutil.copyfile(path, partial / path.name)
        write_manifest(partial, _manifest(spec, target, written, options, partial))
        verify(partial, target, options, result, report)
    result.files = len(program.image.files)
    return Outcome(result, report.findings)


def verify(partial: Path, target: Target, options: Options, result: Exported, report: Report) -> None:
    """Run the hook on the finished folder; raises CkptError with its errors."""
    if options.verify is None:
        return
    findings = options.verify(partial, target.root)
    report.findings += findings
    Report(list(findings)).raise_errors()
    result.verified = True


def is_written_head(path: Path) -> bool:
    """Only folders that we wrote are ever replaced."""
    return (path / MANIFEST).is_file()


def config_for(source: Path, target: Path, options: Options) -> Path | None:
    """A Megatron directory that carries no config is the target's own training: its config is the target's."""
    if options.hf_config or not is_torch_dist(source):
        return options.hf_config
    carried = iteration_directory(source, Report()) / HF_COPY / CONFIG
    return None if carried.is_file() else target


def _written(spec: DraftSpec, target: Target, wanted: str, report: Report) -> Written:
    if wanted == speculators.FORM:
        return speculators.write(spec, target, report)
    if wanted != sglang.FORM:
        raise error(
            UsageProblem,
            "format-unknown",
            f"no format is called {wanted!r}",
            expected=", ".join(FORMATS),
            actual=wanted,
            fix="choose one of them",
        )
    if spec.kind == MTP:
        return sglang.write_mtp(like_target(spec, target), target, report)
    return sglang.write_eagle(spec, target, report)


def like_target(spec: DraftSpec, target: Target) -> DraftSpec:
    """A head out of speculators has its experts packed; per expert is what the releases of most families store."""
    if spec.form != SPECULATORS_MTP or target.family is None:
        return spec
    return with_experts(spec, target.family.defaults().get("mtp_experts", ""))


def check_pair(spec: DraftSpec, target: Target, report: Report) -> None:
    """The sizes without which nothing fits: hidden state, vocabulary, family. The rest is verification."""
    pairs = (
        ("hidden-size", "hidden size", target.hidden_size, spec.target_hidden_size),
        ("vocab-size", "vocabulary", target.vocab_size, spec.vocab_size),
    )
    for code, what, expected, actual in pairs:
        if expected != actual:
            report.error(
                code,
                f"the head was made for another {what}",
                where=str(spec.config_path),
                expected=f"the target's {what}, {expected}",
                actual=str(actual),
                fix="name the target that the head was trained for",
            )
    if spec.kind == MTP and spec.family is not target.family:
        report.error(
            "family-differs",
            "the MTP layers are of another family than the target",
            where=str(spec.config_path),
            expected=target.family.name if target.family else "a family with a table",
            actual=spec.family.name if spec.family else "",
            fix="name the target that the head belongs to",
        )
    if spec.aux is not None and spec.aux == tuple(boundary - 1 for boundary in target.default_aux):
        report.warn(
            "aux-convention-unclear",
            "the aux layers are the usual three, one too low: ids may have been written in the other convention",
            where=str(spec.config_path),
            expected=f"boundaries {target.default_aux}",
            actual=str(spec.aux),
            fix="if acceptance is low, add one to every id in the source's config",
        )


def _manifest(spec: DraftSpec, target: Target, written: Written, options: Options, partial: Path) -> Manifest:
    return Manifest(
        written_by=written_by(),
        format=written.format,
        kind=spec.kind,
        architecture=written.architecture,
        target=target_ref(target, options),
        provenance=provenance(spec, made_names(written, options), options.tuning),
        files=hash_files(partial),
    )


def target_ref(target: Target, options: Options) -> TargetRef:
    model_type = str(target.config.get("model_type", ""))
    return TargetRef(
        ref=target.name, architecture=target.architecture, model_type=model_type, identity=options.identity
    )


def provenance(spec: DraftSpec, made: list[str], tuning: Tuning | None = None) -> Provenance:
    return Provenance(
        source=spec.source.name,
        source_format=spec.form,
        trained=spec.form == MEGATRON or tuning is not None,
        tensors=len(spec.tensors),
        made=made,
        tuning=tuning,
    )


def made_names(written: Written, options: Options) -> list[str]:
    """Tensors that are not the source's."""
    taken = [HEAD] if options.lm_head_from_target else []
    return sorted([*written.made, *taken, *(name for name, entry in written.tensors.items() if not entry.files)])


def _result(spec: DraftSpec, out: Path, target: Target, written: Written, options: Options) -> Exported:
    return Exported(
        source=str(spec.source),
        destination=str(out),
        target=target.name or str(target.root),
        kind=spec.kind,
        source_format=spec.form,
        format=written.format,
        architecture=written.architecture,
        tensors=len(written.tensors) + len(written.made),
        nbytes=sum(e.tensor.nbytes for e in written.tensors.values()) + sum(len(m.data) for m in written.made.values()),
        files=0,
        dry_run=options.dry_run,
        made=made_names(written, options),
    )
