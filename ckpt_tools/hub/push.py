"""Publishing a folder: everything is checked before anything is sent."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageProblem, error
from ..refs import commit_of, expanded, resolve, split
from ..report import Outcome, Report
from .acceptance import PLOT, plot, read_smoke
from .card import CARD, RELATIONS, Facts, open_card, render, stated_by
from .files import Check, check_files, files_of
from .options import Options
from .parcel import Parcel
from .sending import MAIN, Pushed, Starting, send
from .subject import HEAD, Subject, examine

LICENCES = ("LICENSE", "LICENCE", "COPYING")


def push(root: Path, repository: str, options: Options, starting: Starting | None = None) -> Outcome[Pushed]:
    """Check `root` and send it to `repository`. Raises CkptError with every finding before anything is sent.

    A dry run asks the Hub what is there and sends nothing.
    """
    _check_words(repository, options)
    report = Report()
    target, commit = _target(root, options)
    subject = examine(root, target, report)
    names = files_of(root)
    subject.checks += check_files(root, names, report)
    base = _base_model(subject, options, report)
    existing = open_card(_card_text(root, report))
    _check_licence(str(stated_by(existing).get("license") or ""), names, options, subject, report)
    report.raise_errors()
    smoke = read_smoke(options.smoke, root, subject) if options.smoke else {}
    facts = Facts(repository, subject, base, commit, options.relation, options.license, smoke)
    made = {CARD: render(existing, facts, report).encode()} | ({PLOT: plot(smoke)} if smoke else {})
    report.raise_errors()
    pushed = Pushed(
        folder=str(root),
        repository=repository,
        revision=options.revision or MAIN,
        what=subject.what,
        kind=subject.kind,
        base_model=base,
        base_commit=commit,
        dry_run=options.dry_run,
        checks=subject.checks,
        card=made[CARD].decode(),
    )
    send(Parcel(root, tuple(sorted({*names, *made})), made), pushed, options, starting)
    return Outcome(pushed, report.findings)


def check_name(repository: str) -> None:
    """Raise UsageProblem unless this names a repository of an owner."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
        named = "/" in repository
    except HFValidationError:
        named = False
    if not named:
        raise error(
            UsageProblem,
            "repository-name",
            "this is no name of a repository",
            where=repository,
            expected="org/name",
            actual=repository,
            fix="name the owner and the repository",
        )


def _check_words(repository: str, options: Options) -> None:
    check_name(repository)
    if options.create_pr and options.revision not in ("", MAIN):
        raise error(
            UsageProblem,
            "pull-request-revision",
            "a pull request is opened against the main branch",
            expected="--create-pr without --revision",
            actual=f"--revision {options.revision}",
            fix="leave --revision out; to add to an open pull request, --revision refs/pr/N without --create-pr",
        )
    if options.relation and options.relation not in RELATIONS:
        raise error(
            UsageProblem, "relation-unknown", "no such relation", expected=", ".join(RELATIONS), actual=options.relation
        )


def _target(root: Path, options: Options) -> tuple[Path | None, str]:
    """The folder to verify against (without weights) and its commit, if it came from the Hub."""
    ref = options.target or _recorded_target(root)
    if not ref:
        return None, ""
    path = resolve(ref, weights=False)
    return path, commit_of(path)


def _recorded_target(root: Path) -> str:
    from ..drafts.manifest import MANIFEST, read_manifest

    if not (root / MANIFEST).is_file():
        return ""
    manifest = read_manifest(root)
    return manifest.target.ref if manifest.format != "merged" else ""


def _base_model(subject: Subject, options: Options, report: Report) -> str:
    """The Hub id of the base model; a head needs one."""
    local = not options.target or expanded(options.target).exists()
    ref = options.base_model or subject.target_ref or ("" if local else options.target)
    name = split(ref)[0] if ref else ""
    if subject.what == HEAD and not name:
        report.error(
            "base-model-unknown",
            "a card names the base model, and nothing says what others call it",
            expected="org/name",
            actual="a local target without a name",
            fix="--base-model org/name (or --target-name when the head is written)",
        )
    return name


def _card_text(root: Path, report: Report) -> str:
    path = root / CARD
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as problem:
        fix = "write it as UTF-8, for example with `iconv -t utf-8`"
        report.error("card-invalid", f"{CARD} is no text", where=CARD, expected="UTF-8", actual=str(problem), fix=fix)
        return ""


def _check_licence(stated: str, names: list[str], options: Options, subject: Subject, report: Report) -> None:
    file = next((name for name in names if name.split(".")[0].upper() in LICENCES), "")
    found = options.license or stated or file
    if not found:
        report.error(
            "licence-missing",
            "nobody may use what has no licence",
            expected="LICENSE, `license` in the card's metadata, or --license",
            actual="none",
            fix="--license apache-2.0, for example; a head usually follows its target's licence",
        )
    elif options.license and stated and options.license != stated:
        report.error(
            "licence-differs",
            "the card states another licence",
            where=CARD,
            expected=options.license,
            actual=stated,
            fix="correct the card, or leave --license out",
        )
    else:
        subject.checks.append(Check("licence", "ok", found))
