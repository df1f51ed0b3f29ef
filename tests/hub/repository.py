"""What a Hub keeps: repositories as commits of files, and large files by their sha256.

Written from huggingface_hub's own client code and from Git's definitions (blob ids, LFS pointers); asks nothing of ckpt_tools.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

LARGE = (".safetensors", ".distcp", ".bin", ".pt")
LARGE_BYTES = 10 << 20  # the Hub takes larger files as LFS whatever they are called


def git_blob(data: bytes) -> str:
    """Git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Blob:
    """One file's content; `lfs` where a pointer stands in for it in Git."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        lines = (
            "version https://git-lfs.github.com/spec/v1",
            f"oid sha256:{self.sha256}",
            f"size {len(self.data)}",
            "",
        )
        return "\n".join(lines).encode()

    @property
    def oid(self) -> str:
        return git_blob(self.pointer if self.lfs else self.data)

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid

    def entry(self, path: str) -> dict[str, object]:
        """As the tree listing shows it."""
        found: dict[str, object] = {"type": "file", "path": path, "size": len(self.data), "oid": self.oid}
        if self.lfs:
            found["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": len(self.pointer)}
        return found


Tree = dict[str, Blob]


def is_large(path: str, size: int) -> bool:
    return path.endswith(LARGE) or size >= LARGE_BYTES


@dataclass
class Repository:
    """Commits are whole trees; `refs` are branches, tags and pull requests (`refs/pr/N`)."""

    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit("main", {}, "initial commit", whole=True)

    def resolve(self, revision: str) -> str | None:
        """A commit's id for a branch, a pull request or the commit itself."""
        return self.refs.get(revision) or (revision if revision in self.commits else None)

    def tree(self, revision: str = "main") -> Tree:
        commit = self.resolve(revision)
        assert commit is not None, f"{self.name} has no {revision}"
        return self.commits[commit]

    def commit(self, ref: str, changes: dict[str, Blob | None], message: str, whole: bool = False) -> str:
        """A commit on `ref`; None deletes a file, `whole` starts from nothing."""
        tree = {} if whole else dict(self.tree(ref))
        for path, blob in changes.items():
            if blob is None:
                tree.pop(path, None)
            else:
                tree[path] = blob
        commit = hashlib.sha1(f"{self.name} {len(self.commits)} {message}".encode()).hexdigest()
        self.commits[commit] = tree
        self.refs[ref] = commit
        self.messages.append(message)
        return commit

    def open_pull_request(self, parent: str | None = None) -> str:
        number = 1 + sum(ref.startswith("refs/pr/") for ref in self.refs)
        self.refs[f"refs/pr/{number}"] = parent or self.refs["main"]
        return f"refs/pr/{number}"

    def add_folder(self, folder: Path, ref: str = "main") -> str:
        """Commit every file of a folder, as if it had been pushed."""
        files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        if ref not in self.refs:
            self.refs[ref] = self.refs["main"]
        return self.commit(ref, {path: Blob(data, is_large(path, len(data))) for path, data in files.items()}, "files")
