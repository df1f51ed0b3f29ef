"""Refs: a local path, `org/name[@revision]` or `hf://org/name[@revision]`, resolved to a local folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..errors import NotFound, error
from .client import translated
from .headers import header_folder

HUB_PREFIX = "hf://"
WEIGHTS = ("*.safetensors", "*.distcp")
NEVER = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ckpt", "original/*", "consolidated*")
TORCH_FILES = ("pytorch_model.bin", "training_state.pt")  # what heads come in where they are no safetensors
TORCH_DIST = (".metadata", "latest_checkpointed_iteration.txt")
COMMIT = re.compile(r"[0-9a-f]{40}")

SMALL = 4 << 20  # bytes of a tensor up to which checks that need headers only read its values as well


class Fetched(NamedTuple):
    """A local folder; not `complete` where tensors are holes in files that have their headers and sizes only."""

    path: Path
    complete: bool


def resolve(ref: str, weights: bool = True) -> Path:
    """A local folder (or file) for `ref`; Hub ids are downloaded through huggingface_hub, without weights on request.

    Raises NotFound and NotAuthorised.
    """
    if not on_hub(ref):
        return _local(ref)
    name, revision = split(ref)
    folder = _download(name, revision, weights)
    if not weights:
        return folder
    if _is_torch_dist(folder):
        return _download(name, folder.name, weights, everything=True)
    if not any(folder.glob("*.safetensors")):
        return _download(name, folder.name, weights, only=TORCH_FILES)
    return folder


def resolve_headers(ref: str) -> Fetched:
    """As `resolve`, but of a Hub id's safetensors and torch-dist files only the headers are fetched; the engine reads tensors
    by ranges.

    Without a network the cache has to hold everything. Raises NotFound and NotAuthorised.
    """
    if not on_hub(ref):
        return Fetched(_local(ref), True)
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Fetched(resolve(ref), True)
    snapshot = resolve(ref, weights=False)
    with translated(ref):
        folder = header_folder(split(ref)[0], commit_of(snapshot), snapshot)
    if _is_torch_dist(folder) or any(folder.glob("*.safetensors")):
        return Fetched(folder, False)
    return Fetched(resolve(ref), True)


def _is_torch_dist(folder: Path) -> bool:
    return any((folder / file).exists() for file in TORCH_DIST)


def on_hub(ref: str) -> bool:
    """Whether a ref means the Hub: it says so, or no such path exists and it looks like `org/name`."""
    return ref.startswith(HUB_PREFIX) or (not expanded(ref).exists() and _looks_like_hub_id(ref))


def expanded(path: str) -> Path:
    """A path with its `~` replaced; as it stands where there is no such user, so that it is a path that does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def split(ref: str) -> tuple[str, str | None]:
    """(`org/name`, revision or None) of a Hub ref."""
    name, _, revision = ref.removeprefix(HUB_PREFIX).partition("@")
    return name, revision or None


def commit_of(path: Path) -> str:
    """The commit of a folder that `resolve` took from the Hub's cache, "" for any other folder."""
    return path.name if path.parent.name == "snapshots" and COMMIT.fullmatch(path.name) else ""


def _local(ref: str) -> Path:
    path = expanded(ref)
    if path.exists():
        return path
    raise error(
        NotFound,
        "ref-not-found",
        "no such path",
        where=ref,
        expected="a local path, org/name[@revision] or hf://...",
        actual="no such file or directory",
        fix="check the path",
    )


def _looks_like_hub_id(ref: str) -> bool:
    name = ref.partition("@")[0]
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))


def _download(
    name: str, revision: str | None, weights: bool, everything: bool = False, only: tuple[str, ...] = ()
) -> Path:
    from huggingface_hub import snapshot_download

    ignored = None if everything or only else list(NEVER if weights else (*NEVER, *WEIGHTS))
    where = f"{HUB_PREFIX}{name}" + (f"@{revision}" if revision else "")
    with translated(where):
        found = snapshot_download(name, revision=revision, ignore_patterns=ignored, allow_patterns=list(only) or None)
    return Path(found)
