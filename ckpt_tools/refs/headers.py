"""A checkpoint on the Hub as a local folder of its small files and its headers; tensors stay where they are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .ranges import Ranges, marker_of

FIRST = 1 << 17  # bytes of the first request: most headers are no longer
MOST_HEADER = 100_000_000
THREADS = 8
EPOCH = (0, 0)  # the time of files that are made again from the same commit


def header_folder(name: str, commit: str, snapshot: Path) -> Path:
    """The folder for a commit, made once and kept beside the Hub's cache.

    `snapshot` holds the small files; shards that were downloaded whole are linked. A header that is none is left to its
    reader. Raises what the client raises.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.hf_api import RepoFile

    made = Path(constants.HF_HUB_CACHE) / "ckpt-tools-headers" / name.replace("/", "--") / commit
    if made.is_dir():
        return made
    entries = HfApi().list_repo_tree(name, revision=commit)
    files = [e for e in entries if isinstance(e, RepoFile) and e.path.endswith(".safetensors")]
    shards = {e.path: e.size for e in files}
    hashes = {e.path: e.lfs.sha256 if e.lfs else "" for e in files}
    made.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{commit}-", dir=made.parent))
    try:
        _link_small(snapshot, folder)
        here = {path: try_to_load_from_cache(name, path, revision=commit) for path in shards}
        absent = {path: size for path, size in shards.items() if not isinstance(here[path], str)}
        for path in shards.keys() - absent.keys():
            (folder / path).unlink(missing_ok=True)
            (folder / path).symlink_to(Path(str(here[path])).resolve())
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda path: _write_header(folder / path, Ranges(name, commit, path, shards[path])), absent))
        fresh = folder.with_name(f"{folder.name}.json")
        far = {path: [size, hashes[path]] for path, size in absent.items()}
        fresh.write_text(json.dumps({"repository": name, "commit": commit, "files": far}))
        fresh.replace(marker_of(made))
        if not made.exists():  # another process may have been faster
            folder.rename(made)
        return made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_small(snapshot: Path, folder: Path) -> None:
    for path in snapshot.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            target = folder / path.relative_to(snapshot)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve())


def _write_header(path: Path, source: Ranges) -> None:
    """The header at its place, the rest a hole of the right size."""
    data = b"".join(source.chunks(0, min(FIRST, source.size)))
    length = 8 + int.from_bytes(data[:8], "little")
    stop = min(length if length <= MOST_HEADER else 8, source.size)
    data = data[:stop] + b"".join(source.chunks(len(data), stop - len(data)) if stop > len(data) else ())
    with path.open("wb") as stream:
        stream.write(data)
        stream.truncate(source.size)
    os.utime(path, EPOCH)
