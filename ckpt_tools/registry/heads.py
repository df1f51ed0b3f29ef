"""What one does with a registry: add a head that was verified, check heads again, find the heads of a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..drafts.checks.origin import identify_target
from ..drafts.checks.pair import Rules, open_target
from ..drafts.identity import Identity, Mismatch, comparable, mismatches, record, recorded
from ..drafts.manifest import MANIFEST, Provenance, TargetRef, hash_files, read_manifest, written_by
from ..drafts.verify import DEFAULT, verify_draft
from ..errors import CkptError, Finding
from ..refs import expanded, resolve
from ..report import Outcome, Report
from .base import Place
from .hub import Repository
from .manifest import Entry, Measured, Verified
from .store import Name, check_name, put, read_all

EQUAL, MOVED, UNKNOWN = "equal", "moved", "unknown"


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry and, where a target was given, whether its weights are those that the head was made for: "equal", "moved" or
    "unknown"."""

    entry: Entry
    weights: str = ""


@dataclass(slots=True)
class Heads:
    """What every registry command gives back: `action` and the entries that it was about."""

    registry: str
    action: str
    heads: list[Listed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Addition:
    """`draft` and `target` are refs as the user wrote them; `overwrite` and `elsewhere` are as for `put`."""

    name: str
    draft: str
    target: str
    rules: Rules = DEFAULT
    measured: Measured | None = None
    overwrite: bool = False
    elsewhere: bool = True

    @property
    def naming(self) -> Name:
        return Name(self.name, located(self.draft), self.overwrite, self.elsewhere)


def add(place: Place, wanted: Addition) -> Outcome[Entry]:
    """Verify a head and record it; a head that does not fit is not recorded and its errors are raised.

    The name comes first: a verification may take minutes.
    """
    check_name(place, wanted.naming)
    draft, target = resolve(wanted.draft), resolve(wanted.target, weights=False)
    outcome = verify_draft(draft, target, wanted.rules)
    Report(outcome.findings).raise_errors()
    described = open_target(target, "" if target_is_local(wanted.target) else wanted.target)
    manifest = read_manifest(draft) if (draft / MANIFEST).is_file() else None
    entry = Entry(
        name=wanted.name,
        added=datetime.now(UTC).isoformat(timespec="seconds"),
        written_by=written_by(),
        location=located(wanted.draft),
        kind=outcome.result.kind,
        format=outcome.result.form,
        architecture=outcome.result.architecture,
        target_location=located(wanted.target),
        target=TargetRef(
            ref=described.name or (manifest.target.ref if manifest else ""),
            architecture=described.architecture,
            model_type=str(described.config.get("model_type", "")),
            identity=record(identify_target(target)),
        ),
        files=hash_files(draft) if draft.is_dir() else {},
        provenance=manifest.provenance if manifest else _origin(draft, outcome.result.form, outcome.result.tensors),
        verified=Verified(
            server=wanted.rules.server,
            allow_vocab_padding=wanted.rules.allow_vocab_padding,
            allow_prefix_vocab=wanted.rules.allow_prefix_vocab,
            warnings=sorted({finding.code for finding in outcome.findings if finding.severity == "warning"}),
        ),
        measured=wanted.measured,
    )
    put(place, entry, wanted.overwrite, wanted.elsewhere)
    found = [f for f in outcome.findings if f.code != "target-not-recorded"]
    return Outcome(entry, [*found, *_unreachable(place, wanted)])


def _unreachable(place: Place, wanted: Addition) -> list[Finding]:
    """What others who read a registry on the Hub will not find."""
    local = [ref for ref in (wanted.draft, wanted.target) if target_is_local(ref)]
    if not isinstance(place, Repository) or not local:
        return []
    return [
        Finding(
            "location-local",
            "the registry is on the Hub and the entry points into this machine",
            where=place.where,
            expected="Hub ids, or paths of a file system that all share",
            actual=", ".join(located(ref) for ref in local),
            fix="`ckpt-tools push` the head and add it by its name",
            severity="warning",
        )
    ]


def _origin(draft: Path, form: str, tensors: int) -> Provenance:
    """Of a head that no command of ours wrote: what can be seen."""
    return Provenance(source=draft.name, source_format=form, trained=False, tensors=tensors)


def target_is_local(ref: str) -> bool:
    return expanded(ref).exists()


def located(ref: str) -> str:
    """A ref that means the same tomorrow: paths are made absolute."""
    return str(expanded(ref).resolve()) if target_is_local(ref) else ref


def check(entries: Iterable[Entry]) -> list[Finding]:
    """Repeat everything: files against their hashes, the target against its identity, the verification."""
    return [replace(f, where=f"{entry.name}: {f.where}") for entry in entries for f in _check(entry)]


def _check(entry: Entry) -> list[Finding]:
    report = Report()
    try:
        draft = resolve(entry.location)
        _check_files(entry, draft, report)
        target = resolve(entry.target_location, weights=False)
        _check_identity(entry, identify_target(target), report)
        rules = Rules(
            server=entry.verified.server,
            allow_vocab_padding=entry.verified.allow_vocab_padding,
            allow_prefix_vocab=entry.verified.allow_prefix_vocab,
        )
        found = verify_draft(draft, target, rules).findings
        report.findings += [f for f in found if f.severity != "note" and f.code not in entry.verified.warnings]
    except CkptError as problem:
        report.findings += problem.findings
    except OSError as problem:
        where, fix = str(problem.filename or entry.location), "check the path and its permissions"
        report.error("io", problem.strerror or str(problem), where=where, fix=fix)
    return list(dict.fromkeys(report.findings))


def _check_files(entry: Entry, draft: Path, report: Report) -> None:
    now = hash_files(draft) if draft.is_dir() else {}
    for name in sorted({*now, *entry.files}):
        before, after = entry.files.get(name), now.get(name)
        if before == after:
            continue
        code = "file-changed" if before and after else "file-missing" if before else "file-unexpected"
        finding = Finding(
            code,
            f"{name} is not what was registered",
            where=str(draft / name),
            expected=f"sha256 {before.sha256}" if before else "no such file",
            actual=f"sha256 {after.sha256}" if after else "no such file",
            fix="restore the file, or add the head again with --overwrite",
            severity="warning" if code == "file-unexpected" else "error",
        )
        report.findings.append(finding)


def _check_identity(entry: Entry, found: Identity, report: Report) -> None:
    for field_, expected, actual in mismatches(recorded(entry.target.identity), found):
        moved = field_ == "weights"
        report.findings.append(
            Finding(
                "target-weights-changed" if moved else "target-changed",
                f"the target's {field_} {'are' if moved else 'is'} not what was registered",
                where=entry.target_location,
                expected=expected,
                actual=actual,
                fix="measure the head again, or tune it for these weights"
                if moved
                else "point the entry at the target that the head was made for",
                severity="warning" if moved else "error",
            )
        )


def resolve_heads(place: Place, target: Path) -> Outcome[list[Listed]]:
    """The heads of a target: same architecture and tokenizer, those of these very weights first, those of other
    weights last, the best measured first."""
    entries, findings = read_all(place)
    found = identify_target(target)
    fitting = []
    for entry in entries:
        kept = recorded(entry.target.identity)
        differing = mismatches(kept, found)
        if kept.arch_hash == found.arch_hash and all(mismatch.field == "weights" for mismatch in differing):
            fitting.append(Listed(entry, _weights(kept, found, differing)))
    return Outcome(sorted(fitting, key=_rank), findings)


def _weights(kept: Identity, found: Identity, differing: list[Mismatch]) -> str:
    if not comparable(kept.weights_hash, found.weights_hash):
        return UNKNOWN
    return MOVED if differing else EQUAL


def _rank(head: Listed) -> tuple[int, float, str]:
    measured = head.entry.measured
    return (EQUAL, UNKNOWN, MOVED).index(head.weights), -(measured.accept_length if measured else 0.0), head.entry.name
