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
    r"(^\.env(\..*)?|^\.netrc|^\.?git-credentials|^id_(rsa|dsa|ecdsa|ed25519)|\.pem|\.key|\.p12)$"
)
TEXT_LIMIT = 32 << 20
TEXTS = frozenset(
    (
        ".json",
        ".jsonl",
        ".md",
        ".txt",
        ".py",
        ".yaml",
        ".yml",
        ".toml",
        ".cfg",
        ".ini",
        ".jinja",
        ".sh",
        ".html",
        ".log",
    )
)
# Forms that their issuers document; a match is the secret itself, not a word for it.
SECRETS = (
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("a GitHub token", re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b")),
    ("an AWS access key", re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an API key", re.compile(r"\bsk-(proj-|ant-)?[A-Za-z0-9_-]{32,}\b")),
    ("a Google API key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("a Weights & Biases key", re.compile(r"WANDB_API_KEY\W{1,4}[0-9a-f]{40}\b")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
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


def check_files(root: Path, files: list[str], report: Report) -> list[Check]:
    """Report what may not be published; returns what was found in order."""
    before = len(report.errors)
    checks = []
    for name, look in (("no pickles", _pickles), ("no secrets", _secrets), ("no local paths", _local_paths)):
        look(root, files, report)
        if len(report.errors) == before:
            checks.append(Check(name, "ok", f"{len(files)} files"))
        before = len(report.errors)
    return checks


def _pickles(root: Path, files: list[str], report: Report) -> None:
    if found := [name for name in files if is_pickle(root / name)]:
        report.error(
            "pickle",
            f"{len(found)} files are pickles, which run code when they are loaded",
            where=str(root),
            expected="safetensors and text",
            actual=listed(found),
            fix="remove them; `ckpt-tools convert` and `export-draft` write safetensors",
        )


def is_pickle(path: Path) -> bool:
    """By name or by content: a bare pickle, or a zip file with one inside (torch.save)."""
    if path.suffix in PICKLES:
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


def _secrets(root: Path, files: list[str], report: Report) -> None:
    """The report names the place, never the secret."""
    for name in files:
        if SECRET_FILES.search(Path(name).name):
            report.error("secret-file", "a file for credentials", where=name, fix="remove it from the folder")
        for number, line in enumerate(_text(root / name).splitlines(), 1):
            for what, pattern in SECRETS:
                if pattern.search(line):
                    report.error(
                        "secret",
                        f"{what} in a file that is to be published",
                        where=f"{name}:{number}",
                        expected="no credentials",
                        actual="one (not shown)",
                        fix="remove it, and revoke it if the file was ever shared",
                    )


def _local_paths(root: Path, files: list[str], report: Report) -> None:
    for name in files:
        if found := list(dict.fromkeys(local_paths(root / name))):
            report.error(
                "local-path",
                f"{name} holds {len(found)} paths of a machine",
                where=name,
                expected="names that others can resolve",
                actual=listed(found, 4),
                fix="replace them by Hub names, or remove the fields",
            )


def local_paths(path: Path) -> Iterator[str]:
    """Absolute paths in a JSON file's values or in a Markdown text."""
    if path.suffix == ".json" and path.name not in TOKENS:
        try:
            value = json.loads(_text(path) or "null")
        except (ValueError, RecursionError):
            return  # integrity says so where it matters
        yield from (text for text in _strings(value) if PATH_VALUE.fullmatch(text))
    elif path.suffix == ".md":
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
    """The text of a file of a kind that holds text, else nothing."""
    named = path.suffix in TEXTS or not path.suffix or path.name.startswith(".")
    if not named or path.stat().st_size > TEXT_LIMIT:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")
