"""Does this head fit this target, and will the named server load it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CkptError, Finding, NotFound
from ..report import Outcome
from ..stores.hf_folder import is_hf_folder, open_folder
from .checks.chain import check_chain
from .checks.keys import check_keys
from .checks.loading import check_algorithm, check_architecture, check_names
from .checks.origin import check_origin
from .checks.pair import Check, Pair, Rules, TableUse, open_target
from .checks.positions import check_context, check_rope
from .checks.quantisation import check_quantisation
from .checks.shape import check_aux, check_heads, check_hidden, check_mtp, raise_misplaced
from .checks.tables import check_tables
from .checks.values import check_values
from .checks.vocabulary import check_map, check_token_map, check_vocabulary
from .servers import class_of
from .spec import EAGLE3, DraftSpec, open_draft

# Files that cannot be read, in distinction from heads that do not fit.
BROKEN = frozenset(("file-truncated", "file-too-long", "header-invalid", "dtype-unknown", "shard-missing"))
READING = "head by itself"
DEFAULT = Rules()
CHECKS: tuple[Callable[[Pair], None], ...] = (
    check_algorithm,
    check_architecture,
    check_keys,
    check_names,
    check_hidden,
    check_heads,
    check_aux,
    check_mtp,
    check_vocabulary,
    check_map,
    check_token_map,
    check_tables,
    check_context,
    check_rope,
    check_quantisation,
    check_values,
    check_chain,
    check_origin,
)


@dataclass(slots=True)
class Verification:
    """`fits` says whether there was no error. `aux_boundaries` are inputs of target layers, `aux_ids` the same layers in the
    server's words (the layer whose output is taken)."""

    draft: str
    target: str
    server: str
    fits: bool
    kind: str
    form: str
    architecture: str
    server_class: str
    tensors: int
    nbytes: int
    aux_boundaries: list[int] = field(default_factory=list)
    aux_ids: list[int] = field(default_factory=list)
    tables: list[TableUse] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def verify_draft(
    draft: Path, target: Path, rules: Rules = DEFAULT, hf_config: Path | None = None
) -> Outcome[Verification]:
    """Every check that can be made on a CPU in a second.

    Raises NotFound for files that cannot be read and CkptError where there is no head at all.
    """
    spec = _opened(draft, target, hf_config)
    pair = Pair(spec, open_target(target), target, rules)
    for finding in spec.findings:
        pair.found(READING, finding)
    if not spec.findings:
        pair.passed(READING, "config and tensors agree", f"{len(spec.tensors)} tensors")
    try:
        for check in CHECKS:
            check(pair)
    finally:
        pair.close()
    findings = list(dict.fromkeys(pair.report.findings))
    return Outcome(_verification(draft, pair, findings), findings)


def _opened(draft: Path, target: Path, hf_config: Path | None) -> DraftSpec:
    if is_hf_folder(draft) and (broken := [f for f in open_folder(draft).report.errors if f.code in BROKEN]):
        raise NotFound(*broken)
    try:
        return open_draft(draft, hf_config)
    except CkptError as problem:
        raise_misplaced(draft, open_target(target), problem)
        raise


def _verification(draft: Path, pair: Pair, findings: list[Finding]) -> Verification:
    spec = pair.spec
    taken = () if spec.kind != EAGLE3 else spec.aux if spec.aux is not None else pair.target.default_aux
    known = class_of(spec, pair.rules.server)
    return Verification(
        draft=str(draft),
        target=str(pair.path),
        server=pair.rules.server,
        fits=not any(finding.severity == "error" for finding in findings),
        kind=spec.kind,
        form=spec.form,
        architecture=spec.architecture,
        server_class=known.name if known else "",
        tensors=len(spec.tensors),
        nbytes=spec.nbytes,
        aux_boundaries=list(taken),
        aux_ids=[boundary - 1 for boundary in taken],
        tables=pair.tables,
        checks=pair.checks,
    )
