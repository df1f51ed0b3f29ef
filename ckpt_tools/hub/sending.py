"""Sending a parcel: compared with what is there, sent in one commit, compared again.

Large files are handed over before the commit, in batches, so that a rerun after a failure sends only what is missing; the
commit itself names every file at once, so that nobody ever sees an index or a config beside other weights. The client's own
`upload_folder` makes several commits of a large folder, and the first of them may hold the index alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import CkptError, error
from ..refs import HUB_PREFIX
from ..refs.client import Unreachable, quieten, said, status, translated
from ..refs.commits import CONFLICT, MOVED
from ..report import listed
from .files import Check
from .options import Options
from .parcel import NO_BRANCH, REMOVED, SAME, Parcel, Sent, commit_at, files_at, is_weights

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

BATCH = 10 << 30  # bytes handed over before the next batch begins
MAIN = "main"
Starting = Callable[[int], Callable[[int], None] | None]


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
    dry_run: bool
    files: list[Sent] = field(default_factory=list)
    nbytes: int = 0
    checks: list[Check] = field(default_factory=list)
    card: str = ""
    commit: str = ""
    url: str = ""
    pull_request: str = ""


def send(parcel: Parcel, made: Pushed, options: Options, starting: Starting | None = None) -> None:
    """Send what the Hub does not have, and say in `made` what that was. Raises CkptError and its kinds."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="ckpt-tools")
    where = f"{HUB_PREFIX}{made.repository}@{made.revision}"
    quieten()
    parent = commit_at(api, made.repository, made.revision, where)
    there = files_at(api, made.repository, parent, where)
    made.files = [Sent(name, parcel.size(name), parcel.state(there, name)) for name in parcel.names]
    made.nbytes = sum(sent.nbytes for sent in made.files if sent.state != SAME)
    made.files += _leftovers(parcel, there, where, options.replace_weights)
    if options.dry_run:
        return
    with _sending(where):
        parent = _prepare(api, made, options, parent, where)
        _upload(api, parcel, made, options, parent, where, starting)
    _check_arrived(parcel, made, files_at(api, made.repository, made.commit, where), where)


def _leftovers(parcel: Parcel, there: Mapping[str, Any], where: str, replace: bool) -> list[Sent]:
    """Weights of an earlier push that this one does not name: a server would load them, or their index, beside the new ones."""
    names = sorted(name for name in there if name not in parcel.names and is_weights(name))
    if names and not replace:
        raise error(
            CkptError,
            "hub-other-weights",
            f"{len(names)} files of other weights lie on the Hub already, and would be mixed with these",
            where=where,
            expected="no weights but those of the folder",
            actual=listed(names),
            fix="--replace-weights removes them in the same commit (the history keeps them; a new --revision is made from the "
            "main branch with its weights), or name another repository",
        )
    return [Sent(name, int(there[name].size), REMOVED) for name in names]


def _check_arrived(parcel: Parcel, made: Pushed, there: Mapping[str, Any], where: str) -> None:
    differing = [name for name in parcel.names if parcel.state(there, name) != SAME]
    differing += [sent.path for sent in made.files if sent.state == REMOVED and sent.path in there]
    if differing:
        raise error(
            CkptError,
            "hub-differs",
            f"{len(differing)} files on the Hub are not what was sent",
            where=where,
            expected="the same size and hash",
            actual=listed(differing),
            fix="push again; if it happens again, report it to the Hub",
        )


@contextmanager
def _sending(where: str) -> Iterator[None]:
    """Failures on the way, with the word that nothing has to be sent twice."""
    try:
        with translated(where):
            yield
    except Unreachable as problem:
        raise error(
            CkptError,
            "upload-failed",
            "the upload was interrupted; the repository is as it was",
            where=where,
            expected="every file and one commit",
            actual=problem.findings[0].actual,
            fix="run the same command again: only what is missing is sent",
        ) from problem


def _prepare(api: HfApi, made: Pushed, options: Options, parent: str, where: str) -> str:
    """Make the repository and the branch where they are absent; the commit that they hold then."""
    if not parent:
        api.create_repo(made.repository, private=options.private or None, exist_ok=True)
        parent = commit_at(api, made.repository, MAIN, where)
        if any(not name.startswith(".") for name in files_at(api, made.repository, parent, where)):
            raise _moved(where, "files in a repository that was absent")
    if made.revision != MAIN and not made.revision.startswith(NO_BRANCH):
        api.create_branch(made.repository, branch=made.revision, revision=parent, exist_ok=True)
    return parent


def _moved(where: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "hub-moved",
        "somebody else pushed here meanwhile; nothing of this push is on the branch",
        where=where,
        expected="the commit that the folder was compared with",
        actual=actual,
        fix="look at what they pushed, then run the same command again: it compares with that",
    )


def _upload(
    api: HfApi, parcel: Parcel, made: Pushed, options: Options, parent: str, where: str, starting: Starting | None
) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    gone = [CommitOperationDelete(sent.path) for sent in made.files if sent.state == REMOVED]
    wanted = [sent for sent in made.files if sent.state not in (SAME, REMOVED)]
    if not wanted and not gone:
        made.commit = parent
        return
    progress = starting(made.nbytes) if starting else None
    operations = [CommitOperationAdd(sent.path, parcel.sendable(sent.path)) for sent in wanted]
    for batch in _batches(operations):
        api.preupload_lfs_files(
            made.repository, batch, revision=made.revision, create_pr=options.create_pr, free_memory=False
        )
        if progress:
            progress(sum(operation.upload_info.size for operation in batch))
    try:
        info = api.create_commit(
            made.repository,
            [*gone, *operations],
            commit_message=options.message or "Upload with ckpt-tools",
            revision=made.revision,
            create_pr=options.create_pr,
            parent_commit=parent,
        )
    except Exception as problem:
        if status(problem) in (CONFLICT, MOVED):
            raise _moved(where, said(problem)) from problem
        raise
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
