"""Refs: a local path, `org/name[@revision]` or `hf://org/name[@revision]`, resolved to a local folder."""

from __future__ import annotations

from pathlib import Path

from .errors import NotAuthorised, NotFound, error

HUB_PREFIX = "hf://"
WEIGHTS = ("*.safetensors",)
NEVER = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ckpt", "original/*", "consolidated*")


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
