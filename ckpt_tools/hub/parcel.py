"""What a push is made of, and how each file compares with the one on the Hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..refs.client import translated
from ..stores.checksums import sha256_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

NO_BRANCH = "refs/"  # how pull requests begin, which a push adds to and does not open
NEW, CHANGED, SAME, REMOVED = "new", "changed", "unchanged", "removed"
# At the top of a repository: what a server that is given it looks at for weights.
WEIGHTS = re.compile(
    r"[^/]+\.safetensors(\.index\.json)?|(pytorch_model|consolidated)[^/]*\.(bin|pth?)(\.index\.json)?"
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One file; `state` compares it with the repository: new, changed or unchanged; removed there, for one that is not here."""

    path: str
    nbytes: int
    state: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files of a push by name: those of a folder, and the bytes of those that are made for the push."""

    root: Path
    names: tuple[str, ...]
    made: Mapping[str, bytes]

    def sendable(self, name: str) -> bytes | str:
        """What the Hub's client takes: bytes, or the path of a file."""
        return self.made.get(name) or str(self.root / name)

    def size(self, name: str) -> int:
        return len(self.made[name]) if name in self.made else (self.root / name).stat().st_size

    def state(self, there: Mapping[str, Any], name: str) -> str:
        """A file against the RepoFile of its path in `there`, by size and hash."""
        entry = there.get(name)
        if entry is None:
            return NEW
        if entry.size != self.size(name):
            return CHANGED
        if entry.lfs:
            return SAME if self._sha256(name) == entry.lfs.sha256 else CHANGED
        return SAME if self._blob_id(name) == entry.blob_id else CHANGED

    def _sha256(self, name: str) -> str:
        return hashlib.sha256(self.made[name]).hexdigest() if name in self.made else sha256_of(self.root / name)

    def _blob_id(self, name: str) -> str:
        """Git's id of a blob: SHA-1 of `blob <size>`, a zero byte and the content. Only small files lie in git itself."""
        content = self.made.get(name) or (self.root / name).read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_weights(name: str) -> bool:
    """Whether a file of a repository holds weights, or is their index."""
    return WEIGHTS.fullmatch(name) is not None


def commit_at(api: HfApi, repository: str, revision: str, where: str) -> str:
    """The commit that a push goes on top of: that of the revision, for a branch that is to be made that of the main branch, ""
    where there is no such repository yet.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    with translated(where):
        try:
            return str(api.repo_info(repository, revision=revision).sha)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return ""
        except RevisionNotFoundError:
            if revision.startswith(NO_BRANCH):
                raise
            return str(api.repo_info(repository).sha)


def files_at(api: HfApi, repository: str, commit: str, where: str) -> Mapping[str, Any]:
    """The files of a commit by path; none for no commit."""
    from huggingface_hub.hf_api import RepoFile

    if not commit:
        return {}
    with translated(where):
        entries = api.list_repo_tree(repository, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
