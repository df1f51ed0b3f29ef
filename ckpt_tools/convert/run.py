"""Running a conversion: open, decide, plan, write, finish atomically, verify."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from .. import __version__
from ..compare import Logical, compare_logical, duplicate_difference
from ..engine.execute import Timing, execute
from ..engine.output import check_space, check_target, output_directory
from ..errors import CkptError, UsageProblem, error
from ..families.arguments import inexpressible
from ..families.base import HF as VARIANT_HF
from ..families.edits import dtype_edits, edited_config, mtp_edits
from ..model import HF_COPY, Model, open_model
from ..report import Outcome, Report, listed
from ..stores.dtypes import BY_NAME
from ..stores.hf_folder import CONFIG, is_hf_folder
from ..stores.sidecars import MANIFEST, copy_sidecars
from ..stores.torch_dist.reader import RELEASE, TRACKER, TorchDist, is_torch_dist
from .mtp import mtp_to_write
from .options import HF, TORCH_DIST, Options, Result
from .plan import Plan
from .to_hf import plan_hf
from .to_megatron import plan_megatron

TOKENIZERS = frozenset(("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"))
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
    duplicates = _duplicates(model, report)
    plan = plan_megatron(model, mtp, options) if model.is_hf else plan_hf(model, mtp, options, duplicates)
    _remark(model, report)
    result = _result(source, target, to, model, plan, options)
    if options.dry_run:
        check_space(target, plan.program.nbytes)
        return Outcome(result, report.findings)
    progress = starting(plan.program.nbytes) if starting else None
    with output_directory(target, plan.program.nbytes) as partial:
        root = partial / RELEASE if to == TORCH_DIST else partial
        timing = execute(plan.program, root, progress)
        result.sidecars = _finish(model, plan, options, root, duplicates)
        if not TOKENIZERS & set(result.sidecars):
            _remark_no_tokenizer(model, report)
        if to == TORCH_DIST:
            (partial / TRACKER).write_text(RELEASE)
        if options.verify:
            _verify(model, plan, options, partial, result)
    _record(result, timing, began)
    return Outcome(result, report.findings)


def _record(result: Result, timing: Timing, began: float) -> None:
    total = time.perf_counter() - began
    result.timing = {"write_s": timing.write_s, "write_cpu_s": timing.write_cpu_s, "total_s": total}


def _duplicates(model: Model, report: Report) -> set[str]:
    """Tensors that the original stores twice: on the way in they must equal their original, on the way out they return."""
    if isinstance(model.store, TorchDist):
        return {d.hf for d in model.table.duplicates if d.hf in model.reference.names}
    for name, original in model.stored_duplicates():
        worst = duplicate_difference(model, name, original)
        if worst is None:
            report.note("tied-copy", f"{name} equals {original} and is stored once", where=str(model.store.root))
            continue
        raise error(
            CkptError,
            "tie-conflict",
            f"the config ties {name} to {original}, and they differ",
            where=str(model.store.root),
            expected="equal tensors, or tie_word_embeddings false",
            actual=f"max |difference| {worst:g}",
            fix="if the head is a real one, set tie_word_embeddings to false in config.json",
        )
    return {name for name, _ in model.stored_duplicates()}


def _remark(model: Model, report: Report) -> None:
    if problems := inexpressible(model.dims):
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


def _finish(model: Model, plan: Plan, options: Options, root: Path, duplicates: set[str]) -> list[str]:
    """Config and sidecars: beside the weights of a Hugging Face folder, in `hf/` inside a torch-dist iteration.

    Returns the names of the sidecars.
    """
    to_hf = isinstance(model.store, TorchDist)
    folder = root if to_hf else root / HF_COPY
    folder.mkdir(exist_ok=True)
    edits: dict[tuple[str, ...], object] = {}
    if plan.mtp != model.declared:
        edits |= mtp_edits(model.config, plan.mtp, model.family.mtp_field)
    if options.dtype:
        edits |= dtype_edits(model.config, BY_NAME[options.dtype].torch)
    (folder / CONFIG).write_bytes(edited_config(model.config_path.read_bytes(), edits))
    own_folder = options.hf_config is None or options.hf_config.is_dir()
    copied = copy_sidecars(model.config_path.parent, folder) if own_folder else []
    if not to_hf:
        manifest = {
            "written_by": f"ckpt-tools {__version__}",
            "family": model.family.name,
            "stored_duplicates": sorted(duplicates),
            "variants": {v.kind: model.chosen[v.kind] for v in model.family.variants if v.side == VARIANT_HF},
            "dtypes": plan.dtypes,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return copied


def _remark_no_tokenizer(model: Model, report: Report) -> None:
    report.warn(
        "no-tokenizer",
        "no tokenizer came with the config",
        where=str(model.config_path.parent),
        expected="one of " + listed(sorted(TOKENIZERS)),
        actual="none",
        fix="name a folder with the tokenizer as --hf-config, or copy it by hand",
    )


def _verify(model: Model, plan: Plan, options: Options, partial: Path, result: Result) -> None:
    """Read the output again, from its own metadata, and compare every tensor with the source."""
    written = open_model(partial, variants=options.variants)
    left, right = Logical(model, plan.mtp), Logical(written)
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
