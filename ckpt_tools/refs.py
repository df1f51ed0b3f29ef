"""Refs: a local path, `org/name[@revision]` or `hf://org/name[@revision]`, resolved to a local folder."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from .errors import NotAuthorised, NotFound, error

HUB_PREFIX = "hf://"
WEIGHTS = ("*.safetensors",)
NEVER = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ckpt", "original/*", "consolidated*")

SMALL = 4 << 20  # bytes of a tensor up to which it is fetched with the headers: norms, biases, vocabulary maps
MOST_HEADER = 100_000_000


class Fetched(NamedTuple):
    """A local folder; not `complete` where large tensors are holes in files that have their headers and sizes only."""

    path: Path
    complete: bool


def resolve(ref: str, weights: bool = True) -> Path:
    """A local folder (or file) for `ref`; Hub ids are downloaded through huggingface_hub, without weights on request.

    Raises NotFound and NotAuthorised.
    """
    path = Path(ref).expanduser()
    if not ref.startswith(HUB_PREFIX):
        if path.exists():
            return path
        if not _looks_like_hub_id(ref):
            raise error(
                NotFound,
                "ref-not-found",
                "no such path",
                where=ref,
                expected="a local path, org/name[@revision] or hf://...",
                actual="no such file or directory",
                fix="check the path",
            )
    name, _, revision = ref.removeprefix(HUB_PREFIX).partition("@")
    return _download(name, revision or None, weights)


def resolve_headers(ref: str, small_tensors: bool = True) -> Fetched:
    """As `resolve`, but of a Hub id only the small files, the headers and the small tensors are fetched (HTTP ranges)."""
    if not ref.startswith(HUB_PREFIX) and (Path(ref).expanduser().exists() or not _looks_like_hub_id(ref)):
        return Fetched(resolve(ref), True)
    snapshot = resolve(ref, weights=False)
    name, _, revision = ref.removeprefix(HUB_PREFIX).partition("@")
    folder = Path(tempfile.mkdtemp(prefix="ckpt-tools-headers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in snapshot.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    try:
        _fetch_headers(f"{name}@{revision}" if revision else name, folder, small_tensors)
    except OSError as problem:
        raise error(
            NotFound,
            "hub-unreachable",
            "the headers cannot be fetched",
            where=ref,
            actual=_first_line(problem),
            fix="check the network, or download the repository first",
        ) from problem
    return Fetched(folder, False)


def _fetch_headers(repository: str, folder: Path, small_tensors: bool) -> None:
    from huggingface_hub import HfFileSystem

    remote = HfFileSystem()
    for path in sorted(str(found) for found in remote.glob(f"{repository}/*.safetensors")):
        with remote.open(path, "rb", block_size=1 << 18) as source, (folder / Path(path).name).open("wb") as target:
            target.truncate(int(remote.size(path)))
            for offset, data in _header_and_small(source, small_tensors):
                target.seek(offset)
                target.write(data)


def _header_and_small(source: IO[bytes], small_tensors: bool) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a safetensors file's header and small tensors; a header that is none is left to its reader."""
    prefix = source.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > MOST_HEADER:
        yield 0, prefix
        return
    raw = source.read(length)
    yield 0, prefix + raw
    for start, stop in _small(raw) if small_tensors else ():
        source.seek(8 + length + start)
        yield 8 + length + start, source.read(stop - start)


def _small(header: bytes) -> list[tuple[int, int]]:
    try:
        entries: dict[str, Any] = json.loads(header)
        ranges = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        return [(start, stop) for start, stop in ranges if 0 <= stop - start <= SMALL]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _looks_like_hub_id(ref: str) -> bool:
    name = ref.partition("@")[0]
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))


def _download(name: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    ignored = list(NEVER if weights else (*NEVER, *WEIGHTS))
    where = f"{HUB_PREFIX}{name}" + (f"@{revision}" if revision else "")
    try:
        return Path(snapshot_download(name, revision=revision, ignore_patterns=ignored))
    except GatedRepoError as problem:
        raise error(
            NotAuthorised,
            "hub-gated",
            "the repository asks for access",
            where=where,
            actual=_first_line(problem),
            fix="accept its terms on the Hub, then `hf auth login`",
        ) from problem
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as problem:
        raise error(
            NotFound,
            "hub-not-found",
            "no such path, repository or revision",
            where=where,
            actual=_first_line(problem),
            fix="check the name; for a private repository `hf auth login` first",
        ) from problem
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as problem:
        raise error(
            NotFound,
            "hub-unreachable",
            "no such local path, and the Hub cannot be reached",
            where=where,
            actual=_first_line(problem),
            fix="check the path and the network, or download the repository first",
        ) from problem


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
