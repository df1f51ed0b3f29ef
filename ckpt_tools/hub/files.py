"""What of a folder is sent, and what must never leave this machine: pickles, secrets, paths that mean nothing elsewhere."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report import Report, listed
from ..stores import sidecars

SKIPPED_FOLDERS = sidecars.SKIPPED_FOLDERS | {".ipynb_checkpoints"}
PICKLES = frozenset((".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".distcp", ".joblib", ".dill"))
PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
SECRET_FILES = re.compile(
    r"(^\.env(\..*)?|^\.netrc|^\.?git-credentials|^id_(rsa|dsa|ecdsa|ed25519)|\.pem|\.key|\.p12)$",
    re.IGNORECASE,
)
JSON_LIMIT = 32 << 20  # bytes of a file that is parsed
BLOCK, OVERLAP = 1 << 20, 1 << 12  # bytes read at once, and those that are looked at twice; no secret is longer
MOST_HEADER = 100_000_000
SAFETENSORS = ".safetensors"
OPAQUE = frozenset((".gguf", ".onnx", ".h5", ".msgpack", ".npz"))  # weights that may take hours to read
# Forms that their issuers document; a match is the secret itself, not a word for it.
SECRETS = (
    ("a Hugging Face token", re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b")),
    ("a GitHub token", re.compile(rb"\b(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b")),
    ("an AWS access key", re.compile(rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an API key", re.compile(rb"\bsk-(proj-|ant-)?[A-Za-z0-9_-]{32,}\b")),
    ("a Google API key", re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("a Weights & Biases key", re.compile(rb"WANDB_API_KEY\W{1,4}[0-9a-f]{40}\b")),
    ("a private key", re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
TOKENS = frozenset(
    ("tokenizer.json", "vocab.json", "added_tokens.json")
)  # their strings are text, whatever they look like
PATH_VALUE = re.compile(r"(/[^/\s\"'<>|]+){2,}/?|~/\S+|file://\S+|[A-Za-z]:\\\S+")
ROOTS = "home|root|mnt|tmp|Users|scratch|nfs|lustre|gpfs|fsx|workspace|dev/shm|var|private|data|work"
PATH_IN_TEXT = re.compile(rf"(?<![\w.:/\]-])/(?:{ROOTS})/[^\s\"'`<>)\]]+|file:///\S+|(?<!\w)[A-Za-z]:\\\\?\w+\\\S*")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of what was checked; `outcome` is "ok" or "not checked"."""

    name: str
    outcome: str
    detail: str


def files_of(root: Path) -> list[str]:
    """Relative paths of the files to send, in order; caches and Git's own folder stay here."""
    found = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    return [path.as_posix() for path in found if not SKIPPED_FOLDERS & set(path.parts)]


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a check covered, in words, and the files that it should have covered and did not."""

    covered: str
    unseen: list[str]


def check_files(root: Path, files: list[str], report: Report) -> list[Check]:
    """Report what may not be published; returns what was found in order, and what was not looked at."""
    _say_links(root, report)
    checks = []
    for name, look in (("no pickles", _pickles), ("no secrets", _secrets), ("no local paths", _local_paths)):
        before = len(report.errors)
        found = look(root, files, report)
        if len(report.errors) == before:
            checks.append(Check(name, "ok", found.covered))
            checks += [Check(name, "not checked", listed(found.unseen))] if found.unseen else []
    return checks


def _say_links(root: Path, report: Report) -> None:
    links = [path for path in sorted(root.rglob("*")) if path.is_symlink() and not path.is_file()]
    names = [
        path.relative_to(root).as_posix() for path in links if not SKIPPED_FOLDERS & set(path.relative_to(root).parts)
    ]
    if names:
        report.warn(
            "link-not-sent",
            f"{len(names)} links lead to folders or to nothing, and are not sent",
            where=str(root),
            expected="files, and links to files",
            actual=listed(names),
            fix="copy the folder here, or remove the link",
        )


def _pickles(root: Path, files: list[str], report: Report) -> _Looked:
    if found := [name for name in files if is_pickle(root / name)]:
        report.error(
            "pickle",
            f"{len(found)} files are pickles, which run code when they are loaded",
            where=str(root),
            expected="safetensors and text",
            actual=listed(found),
            fix="remove them; `ckpt-tools convert` and `export-draft` write safetensors",
        )
    return _Looked(f"{len(files)} files", [])


def is_pickle(path: Path) -> bool:
    """By name or by content: a bare pickle, or a zip file with one inside (torch.save)."""
    if path.suffix.lower() in PICKLES:
        return True
    with path.open("rb") as stream:
        start = stream.read(4)
    if PICKLE_START.match(start):
        return True
    if start != b"PK\x03\x04":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _secrets(root: Path, files: list[str], report: Report) -> _Looked:
    """The report names the place, never the secret. Of safetensors files the header is read, which holds their metadata."""
    headers = [name for name in files if _suffix(name) == SAFETENSORS]
    unseen = [name for name in files if _suffix(name) in OPAQUE]
    for name in files:
        if SECRET_FILES.search(Path(name).name):
            report.error("secret-file", "a file for credentials", where=name, fix="remove it from the folder")
        for number, what in [] if name in unseen else secrets_in(root / name):
            report.error(
                "secret",
                f"{what} in a file that is to be published",
                where=f"{name}:{number}",
                expected="no credentials",
                actual="one (not shown)",
                fix="remove it, and revoke it if the file was ever shared",
            )
    whole = f"{len(files) - len(headers) - len(unseen)} files"
    return _Looked(f"{whole}, headers of {len(headers)} safetensors files" if headers else whole, unseen)


def secrets_in(path: Path) -> list[tuple[int, str]]:
    """Line and kind of every secret in a file of any kind, in order."""
    found: set[tuple[int, str]] = set()
    with path.open("rb") as stream:
        left = path.stat().st_size
        if _suffix(path.name) == SAFETENSORS:
            left = min(int.from_bytes(stream.read(8), "little"), MOST_HEADER)
        data, line = b"", 1
        while block := stream.read(min(BLOCK, left)):
            left -= len(block)
            line += data.count(b"\n", 0, max(0, len(data) - OVERLAP))
            again = data[-OVERLAP:]
            data = again + block
            plain = data.replace(b"\\n", b"  ").replace(b"\\r", b"  ").replace(b"\\t", b"  ")  # how JSON writes space
            for what, pattern in SECRETS:
                for match in pattern.finditer(plain):
                    if match.start() or not again:
                        found.add((line + data.count(b"\n", 0, match.start()), what))
    return sorted(found)


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _local_paths(root: Path, files: list[str], report: Report) -> _Looked:
    wanted = [name for name in files if _suffix(name) == ".md" or _is_json(root / name)]
    unseen = [name for name in wanted if (root / name).stat().st_size > JSON_LIMIT]
    for name in wanted:
        if found := [] if name in unseen else list(dict.fromkeys(local_paths(root / name))):
            report.error(
                "local-path",
                f"{name} holds {len(found)} paths of a machine",
                where=name,
                expected="names that others can resolve",
                actual=listed(found, 4),
                fix="replace them by Hub names, or remove the fields",
            )
    return _Looked(f"{len(wanted) - len(unseen)} JSON and Markdown files", unseen)


def _is_json(path: Path) -> bool:
    return _suffix(path.name) == ".json" and path.name not in TOKENS


def local_paths(path: Path) -> Iterator[str]:
    """Absolute paths in a JSON file's values or in a Markdown text."""
    if _is_json(path):
        try:
            value = json.loads(_text(path) or "null")
        except (ValueError, RecursionError):
            return  # integrity says so where it matters
        yield from (text for text in _strings(value) if PATH_VALUE.fullmatch(text))
    elif _suffix(path.name) == ".md":
        yield from PATH_IN_TEXT.findall(_text(path))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
