"""Taking the MTP layers out of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..engine.output import check_target
from ..errors import CkptError, Finding, UsageProblem, error
from ..report import Outcome
from ..stores.hf_folder import CURED_BY_INDEX
from .export import (
    Exported,
    Options,
    Starting,
    is_written_head,
    write_head,
)
from .formats.targets import read_target
from .spec import MTP, DraftSpec, open_draft

UNSETTLED = ("mtp-undeclared", "mtp-count")


def extract_draft(
    source: Path, out: Path, options: Options, layers: int | None = None, starting: Starting | None = None
) -> Outcome[Exported]:
    """Write the MTP layers of a Hugging Face or torch-dist model as a folder that SGLang serves as a draft.

    `layers` settles how many there are where config and keys disagree. Of the weights only the head's are read. What the
    files hold counts: an index that leaves tensors out, or names another file for them, is a warning.
    """
    check_target(source, out, options.overwrite, is_written_head)
    spec = open_draft(source, options.hf_config)
    only_mtp(spec, "extract-draft")
    _settle_count(spec, layers)
    spec = replace(spec, findings=tuple(map(_of_the_index_alone, spec.findings)))
    return write_head(spec, out, read_target(spec.config_path, options.target_name), options, starting)


def _of_the_index_alone(finding: Finding) -> Finding:
    return replace(finding, severity="warning") if finding.code in CURED_BY_INDEX else finding


def only_mtp(spec: DraftSpec, verb: str) -> None:
    if spec.kind != MTP:
        raise error(
            UsageProblem,
            "not-mtp",
            f"{verb} is for MTP layers, and this is an {spec.kind} head",
            where=str(spec.source),
            expected="a model with MTP layers, or such layers alone",
            actual=spec.kind,
            fix="export-draft writes EAGLE heads; they are served beside their target, never inside it",
        )


def _settle_count(spec: DraftSpec, layers: int | None) -> None:
    if layers is None:
        unsettled = [finding for finding in spec.findings if finding.code in UNSETTLED]
        if unsettled:
            fix = f"--mtp-layers {spec.mtp_layers} takes what is there"
            raise CkptError(*(replace(finding, severity="error", fix=fix) for finding in unsettled))
    elif layers != spec.mtp_layers:
        raise error(
            CkptError,
            "mtp-count",
            f"--mtp-layers {layers} was asked for and the checkpoint holds {spec.mtp_layers}",
            where=str(spec.source),
            expected=f"{layers} MTP layers",
            actual=str(spec.mtp_layers),
            fix=f"--mtp-layers {spec.mtp_layers}",
        )
