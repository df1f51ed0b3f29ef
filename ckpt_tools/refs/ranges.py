"""Bytes of a file on the Hub by range reads: retried, continued where they broke, from the address that storage gave.

A folder of such files holds their headers and holes where their tensors are; beside it lies `<folder>.remote.json`, which says
where the bytes really are. Whoever opens a file of that folder asks `ranges_of` first; below `HEADERS` weights that are
neither a link nor in that list are an error, never zeros.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import CkptError, error
from .client import is_transport, status, translated

MARKER = ".remote.json"
HEADERS = "ckpt-tools-headers"  # the folder of all folders with holes
SAFETENSORS, DISTCP = ".safetensors", ".distcp"
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
ATTEMPTS = 5  # in a row without a byte
WAIT_S, LONGEST_S = 1.0, 8.0
EXPIRED = (400, 401, 403, 410)  # what storage says of a signature that is too old
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Ranges:
    """One file of a commit; may be read by several threads at once."""

    def __init__(self, repository: str, commit: str, name: str, size: int) -> None:
        self.repository, self.commit, self.name, self.size = repository, commit, name, size
        self.where = f"hf://{repository}@{commit}/{name}"
        self._lock = threading.Lock()
        self._address: tuple[str, dict[str, str]] | None = None

    def read_into(self, view: memoryview, position: int) -> None:
        """Fill `view` from `position`. Raises NotFound, NotAuthorised and CkptError."""
        at = 0
        for data in self.chunks(position, len(view)):
            view[at : at + len(data)] = data
            at += len(data)

    def chunks(self, position: int, length: int) -> Iterator[bytes]:
        """The bytes of a range in order; a connection that breaks is taken up where it broke."""
        stop, failures, fresh = position + length, 0, False
        with translated(self.where):
            while position < stop:
                try:
                    for data in self._request(position, stop):
                        yield data
                        position, failures = position + len(data), 0
                except CkptError:
                    raise
                except Exception as problem:
                    refused = status(problem) in EXPIRED
                    failures += 1
                    if failures >= ATTEMPTS or (refused and fresh) or not (refused or passing(problem)):
                        raise
                    fresh = fresh or refused
                    if refused:
                        self._address = None
                    else:
                        time.sleep(min(LONGEST_S, WAIT_S * 2 ** (failures - 1)))

    def _request(self, position: int, stop: int) -> Iterator[bytes]:
        from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

        url, headers = self.address()
        headers = {**headers, "Range": f"bytes={position}-{stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=60) as response:
            hf_raise_for_status(response)
            found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if response.status_code != 206 or not found or int(found[1]) != position:
                raise self._unusable("the server does not send ranges", f"bytes {position:,} to {stop:,}", response)
            if int(found[3]) != self.size:
                raise self._unusable("the file has another size than before", f"{self.size:,} bytes", response)
            for data in response.iter_bytes():
                yield data[: stop - position]
                position += len(data)
        if position < stop:
            raise ConnectionError(f"the connection ended {stop - position:,} bytes early")

    def _unusable(self, what: str, expected: str, response: Any) -> CkptError:
        actual = f"status {response.status_code}, {response.headers.get('Content-Range') or 'no Content-Range'}"
        fix = "`hf download` the repository and name the folder"
        return error(CkptError, "range-refused", what, where=self.where, expected=expected, actual=actual, fix=fix)

    def address(self) -> tuple[str, dict[str, str]]:
        """Where the bytes are, and what to send along; a token only to the Hub itself, never to its storage."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        with self._lock:
            if self._address is None:
                url = hf_hub_url(self.repository, self.name, revision=self.commit)
                location = get_hf_file_metadata(url, timeout=60).location
                own = urlsplit(location).netloc == urlsplit(url).netloc
                self._address = (location, build_hf_headers() if own else {})
            return self._address


def passing(problem: Exception) -> bool:
    """Whether it may work the next time: a broken connection, a server in trouble."""
    answered = status(problem)  # the client's errors are its HTTP library's as well: where there is an answer, it tells
    return (
        answered in (408, 429, 500, 502, 503, 504)
        if answered
        else is_transport(problem) or type(problem) is ConnectionError
    )


class RangedFile(Ranges):
    """As Ranges, beside the local file with the header: knows where tensors begin and end in a safetensors file."""

    def __init__(self, path: Path, repository: str, commit: str, under: str, size: int) -> None:
        super().__init__(repository, commit, under + path.name, size)
        self.path = path

    def tensor_at(self, position: int) -> tuple[int, int]:
        """Where the tensor that holds a byte begins and ends; (0, 0) outside of tensors."""
        number = bisect_right(self._starts, position) - 1
        if number < 0 or position >= self._tensors[number][1]:
            return 0, 0
        return self._tensors[number]

    @cached_property
    def _tensors(self) -> list[tuple[int, int]]:
        if self.path.suffix != SAFETENSORS:
            return []
        with self.path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            entries = json.loads(stream.read(length))
        places = (entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__")
        return sorted((8 + length + start, 8 + length + stop) for start, stop in places)

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self._tensors]


def marker_of(folder: Path) -> Path:
    """The file beside a folder that says where its bytes are; beside, so that it never travels with the files."""
    return folder.parent / (folder.name + MARKER)


def hashes_of(folder: Path) -> dict[str, str]:
    """The SHA-256 that the Hub states of files whose bytes are not here, by name; none for a local folder."""
    return {name: sha256 for name, (_, sha256) in _marker(folder)["files"].items() if sha256}


def holes_of(folder: Path) -> dict[str, int]:
    """The sizes of files whose bytes are not here, by name; none for a local folder. Raises CkptError."""
    return {name: size for name, (size, _) in _marker(folder)["files"].items()}


def mark(folder: Path, repository: str, commit: str, under: str, files: dict[str, tuple[int, str]]) -> None:
    """Say of `files` (size and SHA-256 by name) that their bytes are on the Hub, below `under` ("" or with a slash)."""
    with marker_of(folder).open("w", encoding="utf-8") as stream:
        json.dump({"repository": repository, "commit": commit, "under": under, "files": files}, stream)
        stream.flush()
        os.fsync(stream.fileno())


def _marker(folder: Path) -> dict[str, Any]:
    """Raises CkptError for one that is there and cannot be read."""
    path = marker_of(folder)
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        texts = [found[name] for name in ("repository", "commit", "under")]
        sizes = [size for size, _ in found["files"].values()]
        if all(isinstance(text, str) for text in texts) and all(isinstance(size, int) for size in sizes):
            return found
        problem = "values of other types"
    except OSError as failure:
        if failure.errno in ABSENT:
            return {"files": {}}
        problem = failure.strerror or str(failure)
    except (ValueError, TypeError, KeyError, AttributeError) as failure:
        problem = f"{type(failure).__name__}: {failure}"
    raise _unknown(path, "where the bytes of a folder are", problem)


def _unknown(path: Path, expected: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "hub-headers-damaged",
        "nothing says where the tensors of these files are",
        where=str(path),
        expected=expected,
        actual=actual,
        fix=f"remove the folder (everything below {HEADERS} can be fetched again), then name the repository, not the folder",
    )


@cache
def ranges_of(path: Path) -> RangedFile | None:
    """How to read a file whose bytes are on the Hub; None for a file that is all here. Raises CkptError if nobody knows."""
    found = _marker(path.parent)
    if path.name in found["files"]:
        return RangedFile(path, found["repository"], found["commit"], found["under"], found["files"][path.name][0])
    if path.suffix in (SAFETENSORS, DISTCP) and HEADERS in path.absolute().parts and not path.is_symlink():
        raise _unknown(path, f"its size and place in {marker_of(path.parent).name}", "not named there")
    return None
