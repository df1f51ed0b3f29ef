"""What a folder is: a head or a whole model, checked as such before anybody else sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..drafts.checks.pair import Rules
from ..drafts.identity import identity_hashes
from ..drafts.manifest import MANIFEST, Manifest, hash_file, read_manifest
from ..drafts.servers import SGLANG, VLLM
from ..drafts.spec import first_architecture, open_draft
from ..drafts.verify import verify_draft
from ..errors import CkptError, NotFound, error
from ..model import open_model
from ..report import Report, listed
from ..stores.hf_folder import is_hf_folder, open_folder
from .files import Check

HEAD, MODEL = "head", "model"
MERGED = "merged"


@dataclass(slots=True)
class Subject:
    """`what` is "head" or "model"; `kind` that of the head ("" for a model without one); `servers` are those that load the
    head for sure. `identity` are the hashes of the target of a head, of the model itself otherwise."""

    what: str
    kind: str = ""
    form: str = ""
    architecture: str = ""
    tensors: int = 0
    nbytes: int = 0
    servers: list[str] = field(default_factory=list)
    target_ref: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)


def examine(root: Path, target: Path | None, report: Report) -> Subject:
    """Open the folder, check its files against each other and a head against its target. Raises NotFound for no checkpoint."""
    if not is_hf_folder(root):
        raise error(
            NotFound,
            "checkpoint-not-found",
            "nothing here that can be published",
            where=str(root),
            expected="a folder with config.json and *.safetensors",
            actual="no such folder" if not root.is_dir() else "none",
            fix="`ckpt-tools convert` or `export-draft` writes one",
        )
    folder = open_folder(root)
    report.findings += folder.report.findings
    if not folder.tensors:
        report.error("weights-missing", "no weights in the folder", where=str(root), expected="*.safetensors")
    manifest = read_manifest(root) if (root / MANIFEST).is_file() else None
    subject = Subject(
        HEAD,
        tensors=len(folder.tensors),
        nbytes=sum(tensor.nbytes for tensor in folder.tensors.values()),
        target_ref=manifest.target.ref if manifest else "",
        identity=dict(manifest.target.identity) if manifest else {},
    )
    if report.errors:
        return subject
    subject.checks.append(Check("integrity", "ok", f"{len(folder.files)} files, {len(folder.tensors)} tensors"))
    if manifest:
        _check_hashes(root, manifest, subject, report)
    if manifest is not None and manifest.format == MERGED:
        _examine_model(root, subject, report, merged=True)
    elif manifest is None and _is_model(root):
        _examine_model(root, subject, report, merged=False)
    else:
        _examine_head(root, target, subject, report)
    return subject


def _check_hashes(root: Path, manifest: Manifest, subject: Subject, report: Report) -> None:
    """The files are those that were written and verified."""
    differing = [
        name for name, known in manifest.files.items() if not (root / name).is_file() or hash_file(root / name) != known
    ]
    if differing:
        report.error(
            "manifest-differs",
            f"{len(differing)} files are not what {MANIFEST} says",
            where=str(root),
            expected="the files as they were written",
            actual=listed(differing),
            fix="write the head again, or remove the manifest if the change is meant",
        )
    else:
        subject.checks.append(Check("manifest", "ok", f"SHA-256 of {len(manifest.files)} files"))


def _is_model(root: Path) -> bool:
    try:
        open_model(root)
    except CkptError:
        return False
    return True


def _examine_model(root: Path, subject: Subject, report: Report, merged: bool) -> None:
    subject.what = MODEL
    model = open_model(root)
    subject.architecture = first_architecture(model.config)
    subject.identity = {f"{name}_hash": value for name, value in identity_hashes(model, weights=True).items()}
    subject.checks.append(Check("completeness", "ok", f"every tensor of {model.family.name}, {model.mtp} MTP layers"))
    if merged or model.mtp:
        _verify(root, root, subject, report)


def _examine_head(root: Path, target: Path | None, subject: Subject, report: Report) -> None:
    spec = open_draft(root)
    subject.kind, subject.form = spec.kind, spec.form
    subject.architecture = spec.architecture
    if target is None:
        report.error(
            "target-unknown",
            "a head is published with the target that it fits, and none is named",
            where=str(root),
            expected="--target, or a name in the head's manifest",
            actual="neither",
            fix="--target org/name@revision",
        )
        return
    _verify(root, target, subject, report)


def _verify(root: Path, target: Path, subject: Subject, report: Report) -> None:
    """Against SGLang, which decides; vLLM is named only if it would load the head as well."""
    found = verify_draft(root, target, Rules(server=SGLANG))
    known = {str(finding) for finding in report.findings}
    report.findings += [finding for finding in found.findings if str(finding) not in known]
    subject.kind, subject.form = found.result.kind, found.result.form
    if not found.sound:
        return
    subject.servers.append(SGLANG)
    passed = sum(check.outcome == "ok" for check in found.result.checks)
    subject.checks.append(
        Check("verify-draft", "ok", f"fits its target; {passed} checks; loads as {found.result.server_class}")
    )
    if subject.what == HEAD and verify_draft(root, target, Rules(server=VLLM)).sound:
        subject.servers.append(VLLM)
