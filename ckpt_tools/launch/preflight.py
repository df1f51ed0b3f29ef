"""Everything a training job must know before it takes a GPU: script, checkpoints, head and server agree, or what does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

from ..drafts.checks.pair import Check
from ..errors import Finding
from ..report import Outcome
from .case import Case
from .checkpoint import check_identity, check_layout, check_mtp, check_stored, check_tracker
from .inputs import Inputs, merged, read_config
from .megatron import check_model_flags
from .memory import Memory, estimate
from .parallel import check_parallel, check_server_parallel
from .reading import open_case
from .server import check_metrics, check_server_flags
from .speculation import check_head, check_speculation
from .vocabulary import check_vocabulary

Ref = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Preflight:
    """`fits` says whether there was no error. Paths are what was looked at, "" where nothing was. `memory` is None where it
    cannot be told."""

    fits: bool
    target: str
    torch_dist: str
    draft: str
    script: str
    trainer: str
    sglang: str
    family: str
    mtp_layers: int | None
    memory: Memory | None = None
    checks: list[Check] = field(default_factory=list)


def preflight(
    config: Ref | None = None,
    *,
    target: Ref | None = None,
    torch_dist: Ref | None = None,
    draft: Ref | None = None,
    script: Ref | None = None,
    args: str = "",
    server_args: str = "",
    variables: Mapping[str, str] | None = None,
    sglang_version: str | None = None,
) -> Outcome[Preflight]:
    """Check whatever is given against each other; metadata only, no weights, nothing of the script is run.

    `config` is a YAML file with the other arguments. `target` and `draft` are folders or Hub ids, `torch_dist` a Megatron
    checkpoint; each may be left to the `script` (--hf-checkpoint, --load or --ref-load, --sglang-speculative-draft-model-path).
    `args` are more training flags, `server_args` those of a server that is started apart. `variables` are those of the script's
    environment. Raises UsageProblem where nothing is named and NotFound for what the caller names and is not there.
    """
    given = Inputs(
        target=_text(target),
        torch_dist=_text(torch_dist),
        draft=_text(draft),
        script=_text(script),
        args=args,
        server_args=server_args,
        variables=dict(variables or {}),
        sglang_version=sglang_version,
    )
    inputs = merged(read_config(Path(config)), given) if config is not None else given
    case, root = open_case(inputs)
    check_stored(case)
    check_tracker(case, root)
    check_identity(case)
    check_model_flags(case)
    check_vocabulary(case)
    check_mtp(case)
    check_layout(case)
    check_parallel(case)
    check_server_flags(case)
    check_server_parallel(case)
    check_speculation(case)
    check_metrics(case)
    check_head(case)
    findings = list(dict.fromkeys(case.report.findings))
    return Outcome(_result(case, inputs, root, findings), findings)


def _text(ref: Ref | None) -> str | None:
    return None if ref is None else fspath(ref)


def _result(case: Case, inputs: Inputs, root: Path | None, findings: list[Finding]) -> Preflight:
    return Preflight(
        fits=not any(finding.severity == "error" for finding in findings),
        target=str(case.target.read.root) if case.target else "",
        torch_dist=str(root or ""),
        draft=str(case.draft or ""),
        script=inputs.script or "",
        trainer="slime" if case.slime else "megatron" if case.training.given else "",
        sglang=case.release.version,
        family=case.family.name if case.family else "",
        mtp_layers=case.mtp,
        memory=estimate(case),
        checks=case.checks,
    )
