"""Small files of a Hub repository: read as they are now, changed by a commit on top of what was read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import commit_of, split
from .client import quieten, said, status, translated
from .ranges import passing

Changes = Mapping[str, str | None]  # text of a file by its name; None takes it out
CONFLICT, MOVED = 409, 412  # another commit is under way; the parent is no longer the last


class NotCommitted(Exception):
    """The revision has moved, another commit is under way, or nobody knows whether this one landed: look again."""


def latest(ref: str, pattern: str) -> Path:
    """The files of a Hub ref that match `pattern`, at its newest commit; offline, as they were seen last.

    Raises NotFound and NotAuthorised.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    name, revision = split(ref)
    with translated(ref):
        if not constants.HF_HUB_OFFLINE:
            HfApi().repo_info(
                name, revision=revision
            )  # snapshot_download takes its cache for the answer where this fails
        return Path(snapshot_download(name, revision=revision, allow_patterns=[pattern]))


def commit(ref: str, seen: Path, changes: Changes, message: str) -> None:
    """Change files of a Hub ref in one commit whose parent is that of `seen`, a folder that `latest` gave.

    Raises NotCommitted, NotFound and NotAuthorised.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import RemoteEntryNotFoundError

    quieten()
    (name, revision), parent = split(ref), commit_of(seen)
    operations = [
        CommitOperationDelete(path) if text is None else CommitOperationAdd(path, text.encode())
        for path, text in changes.items()
    ]
    api = HfApi(library_name="ckpt-tools")
    try:
        api.create_commit(name, operations, commit_message=message, revision=revision, parent_commit=parent)
    except Exception as problem:
        taken_out = isinstance(problem, RemoteEntryNotFoundError)
        if taken_out or status(problem) in (CONFLICT, MOVED) or passing(problem):
            raise NotCommitted(said(problem)) from problem
        with translated(ref):
            raise
