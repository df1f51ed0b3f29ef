"""A checkpoint on the Hub as a local folder of its small files and its headers; tensors stay where they are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import CkptError
from .ranges import DISTCP, HEADERS, SAFETENSORS, Ranges, holes_of, mark

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

COMMON = "common.pt"  # Megatron's plain state, read without running code
FIRST = 1 << 17  # bytes of the first request: most headers are no longer
MOST_HEADER = 100_000_000
THREADS = 8
EPOCH = (0, 0)  # the time of files that are made again from the same commit


def header_folder(name: str, commit: str, snapshot: Path) -> Path:
    """The folder for a commit, made once and kept beside the Hub's cache; made again if something of it is lost.

    `snapshot` holds the small files; files of weights that were downloaded whole are linked. A header that is none is left to
    its reader; those of torch-dist's frames are fetched when they are asked for (edges.py). Raises what the client raises.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.hf_api import RepoFile

    made = Path(constants.HF_HUB_CACHE) / HEADERS / name.replace("/", "--") / commit
    if _is_whole(made / commit):
        return made / commit
    entries = [e for e in HfApi().list_repo_tree(name, revision=commit, recursive=True) if isinstance(e, RepoFile)]
    weights = [e for e in entries if e.path.endswith(DISTCP) or (e.path.endswith(SAFETENSORS) and "/" not in e.path)]
    made.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{commit}-", dir=made.parent))
    try:
        folder = temporary / "new" / commit
        folder.mkdir(parents=True)
        _link_small(snapshot, folder)
        _fetch_common(name, commit, entries, folder)
        absent = [entry for entry in weights if not _link_cached(name, commit, entry.path, folder)]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda e: _write_header(folder / e.path, Ranges(name, commit, e.path, e.size)), absent))
        for under in {PurePosixPath(entry.path).parent for entry in absent}:
            here = {
                PurePosixPath(e.path).name: (e.size, e.lfs.sha256 if e.lfs else "") for e in absent if _in(e, under)
            }
            mark(folder / under, name, commit, "" if under == PurePosixPath() else f"{under}/", here)
        _put(folder.parent, made, temporary / "old")
        return made / commit
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(fresh: Path, made: Path, old: Path) -> None:
    """Both the folder and what says where its bytes are appear at once; another process may be faster."""
    if _is_whole(made / made.name):
        return
    with suppress(FileNotFoundError):
        made.rename(old)
    try:
        fresh.rename(made)
    except OSError:
        if not _is_whole(made / made.name):
            raise


def _is_whole(folder: Path) -> bool:
    """Whether every link leads somewhere, every hole is known as one, and no file is lost."""
    if not folder.is_dir():
        return False
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    try:
        holes = {
            under / name: size
            for under in {folder, *(path.parent for path in paths)}
            for name, size in holes_of(under).items()
        }
    except CkptError:
        return False
    own = {
        path: path.stat().st_size for path in paths if not path.is_symlink() and path.suffix in (SAFETENSORS, DISTCP)
    }
    return own == holes and all(path.exists() for path in paths)


def _in(entry: RepoFile, under: PurePosixPath) -> bool:
    return PurePosixPath(entry.path).parent == under


def _link_small(snapshot: Path, folder: Path) -> None:
    for path in snapshot.rglob("*"):
        if path.is_file() and path.suffix not in (SAFETENSORS, DISTCP):
            _link(folder / path.relative_to(snapshot), path)


def _link(target: Path, path: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(path.resolve())


def _link_cached(name: str, commit: str, path: str, folder: Path) -> bool:
    """Whether a file is in the cache already; it is linked then."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, path, revision=commit)
    if isinstance(found, str):
        _link(folder / path, Path(found))
    return isinstance(found, str)


def _fetch_common(name: str, commit: str, entries: Iterable[RepoFile], folder: Path) -> None:
    """The plain state of a torch-dist directory; other files of that kind are not wanted."""
    from huggingface_hub import hf_hub_download

    for entry in entries:
        if PurePosixPath(entry.path).name == COMMON:
            _link(folder / entry.path, Path(hf_hub_download(name, entry.path, revision=commit)))


def _write_header(path: Path, source: Ranges) -> None:
    """The header at its place, the rest a hole of the right size; nothing but the hole of a torch-dist file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"" if path.suffix == DISTCP else _header(source)
    with path.open("wb") as stream:
        stream.write(data)
        stream.truncate(source.size)
        stream.flush()
        os.fsync(stream.fileno())
    os.utime(path, EPOCH)


def _header(source: Ranges) -> bytes:
    data = b"".join(source.chunks(0, min(FIRST, source.size)))
    length = 8 + int.from_bytes(data[:8], "little")
    stop = min(length if length <= MOST_HEADER else 8, source.size)
    return data[:stop] + b"".join(source.chunks(len(data), stop - len(data)) if stop > len(data) else ())
