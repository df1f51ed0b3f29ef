"""Uploading a folder: checked first, compared with what is there, sent in one commit, compared again.

Large files are handed over before the commit, in batches, so that a rerun after a failure sends only what is missing; the
commit itself names every file at once, so that nobody ever sees an index or a config beside other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CkptError, UsageProblem, error
from ..refs import HUB_PREFIX, commit_of, resolve, split
from ..refs.client import Unreachable, quieten, translation
from ..report import Outcome, Report, listed
from .card import CARD, RELATIONS, Facts, open_card, read_smoke, render, stated_by
from .files import Check, check_files, files_of
from .parcel import SAME, Parcel, Sent, remote_files
from .subject import HEAD, Subject, examine

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

BATCH = 10 << 30  # bytes handed over before the next batch begins
LICENCES = ("LICENSE", "LICENCE", "COPYING")
MAIN = "main"
Starting = Callable[[int], Callable[[int], None] | None]


@dataclass(frozen=True, slots=True)
class Options:
    """`target` and `base_model` default to what the head's manifest records; `license` is a Hub licence id."""

    target: str = ""
    base_model: str = ""
    relation: str = ""
    license: str = ""
    smoke: Path | None = None
    private: bool = False
    create_pr: bool = False
    revision: str = ""
    message: str = ""
    dry_run: bool = False


@dataclass(slots=True)
class Pushed:
    """`nbytes` are those of new and changed files; `commit` is "" for a dry run, `pull_request` an address or ""."""

    folder: str
    repository: str
    revision: str
    what: str
    kind: str
    base_model: str
    base_commit: str
    files: list[Sent]
    nbytes: int
    dry_run: bool
    checks: list[Check] = field(default_factory=list)
    card: str = ""
    commit: str = ""
    url: str = ""
    pull_request: str = ""


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
    existing = open_card(_card_text(root))
    _check_licence(str(stated_by(existing).get("license") or ""), names, options, subject, report)
    smoke = read_smoke(options.smoke, subject.kind) if options.smoke else {}
    facts = Facts(repository, subject, base, commit, options.relation, options.license, smoke)
    card = render(existing, facts, report) if not report.errors else ""
    report.raise_errors()
    parcel = Parcel(root, tuple(sorted({*names, CARD})), card.encode())
    return Outcome(_send(parcel, facts, options, report, starting), report.findings)


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
    local = not options.target or Path(options.target).expanduser().exists()
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


def _card_text(root: Path) -> str:
    path = root / CARD
    return path.read_text(encoding="utf-8") if path.is_file() else ""


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


# --- sending


def _send(parcel: Parcel, facts: Facts, options: Options, report: Report, starting: Starting | None) -> Pushed:
    from huggingface_hub import HfApi

    api = HfApi(library_name="ckpt-tools")
    revision = options.revision or MAIN
    where = f"{HUB_PREFIX}{facts.repository}@{revision}"
    quieten()
    there = remote_files(api, facts.repository, revision, where)
    files = [Sent(name, parcel.size(name), parcel.state(there, name)) for name in parcel.names]
    made = Pushed(
        folder=str(parcel.root),
        repository=facts.repository,
        revision=revision,
        what=facts.subject.what,
        kind=facts.subject.kind,
        base_model=facts.base_model,
        base_commit=facts.base_commit,
        files=files,
        nbytes=sum(sent.nbytes for sent in files if sent.state != SAME),
        dry_run=options.dry_run,
        checks=facts.subject.checks,
        card=parcel.card.decode(),
    )
    if options.dry_run:
        return made
    with _sending(where):
        _prepare(api, facts.repository, revision, options)
        _upload(api, parcel, made, options, starting)
    landed = made.revision
    there = remote_files(api, facts.repository, made.commit or landed, where)
    if differing := [name for name in parcel.names if parcel.state(there, name) != SAME]:
        raise error(
            CkptError,
            "hub-differs",
            f"{len(differing)} files on the Hub are not what was sent",
            where=where,
            expected="the same size and hash",
            actual=listed(differing),
            fix="push again; if it happens again, report it to the Hub",
        )
    return made


@contextmanager
def _sending(where: str) -> Iterator[None]:
    """Failures on the way, with the word that nothing has to be sent twice."""
    try:
        yield
    except CkptError:
        raise
    except Exception as problem:
        found = translation(problem, where)
        if found is None:
            raise
        if not isinstance(found, Unreachable):
            raise found from problem
        raise error(
            CkptError,
            "upload-failed",
            "the upload was interrupted; the repository is as it was",
            where=where,
            actual=found.findings[0].actual,
            fix="run the same command again: only what is missing is sent",
        ) from problem


def _prepare(api: HfApi, repository: str, revision: str, options: Options) -> None:
    """Make the repository and the branch where they are absent."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        api.repo_info(repository)
    except RepositoryNotFoundError:
        api.create_repo(repository, private=options.private or None, exist_ok=True)
    if revision != MAIN and not revision.startswith("refs/"):
        api.create_branch(repository, branch=revision, exist_ok=True)


def _upload(api: HfApi, parcel: Parcel, made: Pushed, options: Options, starting: Starting | None) -> None:
    from huggingface_hub import CommitOperationAdd

    wanted = [sent for sent in made.files if sent.state != SAME]
    if not wanted:
        made.commit = str(api.repo_info(made.repository, revision=made.revision).sha)
        return
    progress = starting(made.nbytes) if starting else None
    operations = [CommitOperationAdd(sent.path, parcel.sendable(sent.path)) for sent in wanted]
    for batch in _batches(operations):
        api.preupload_lfs_files(
            made.repository, batch, revision=made.revision, create_pr=options.create_pr, free_memory=False
        )
        if progress:
            progress(sum(operation.upload_info.size for operation in batch))
    info = api.create_commit(
        made.repository,
        operations,
        commit_message=options.message or "Upload with ckpt-tools",
        revision=made.revision,
        create_pr=options.create_pr,
    )
    made.commit, made.url, made.pull_request = info.oid, str(info.commit_url), str(info.pr_url or "")


def _batches(operations: list[CommitOperationAdd]) -> Iterator[list[CommitOperationAdd]]:
    batch: list[CommitOperationAdd] = []
    filled = 0
    for operation in operations:
        batch.append(operation)
        filled += operation.upload_info.size
        if filled >= BATCH:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch
