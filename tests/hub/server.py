"""A Hub on this machine: enough of its HTTP API for the real huggingface_hub client, with faults on demand and counters.

The API was read from the client: repositories, tree, revisions, resolve with ranges and redirects, preupload, LFS batch with
basic and multipart uploads, commits, branches, pull requests. Nothing here asks ckpt_tools.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from .repository import Repository

TOKEN = "hf_" + "localtesttoken" * 2
PART = 1 << 20  # LFS files larger than this are uploaded in parts


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match: a status, a dropped connection, changed bytes.

    `kind` is a status code, "drop" (the connection closes after `after` bytes of the body), "lost" (the request is carried out
    and its answer never comes), "corrupt" (a byte is changed on the way) or "ignore-range" (the whole file is sent).
    """

    kind: int | str
    method: str
    path: str
    times: int = 1
    after: int = 0

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and re.search(self.path, path) is not None


class Seen(NamedTuple):
    """One request that was answered (status 0: the connection was dropped)."""

    method: str
    path: str
    status: int
    authorised: bool


@dataclass
class State:
    """Everything that a test may look at or set up; emptied between tests."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    part_size: int = PART
    readers: set[str] = field(default_factory=set)  # tokens that may read and nothing else
    redirect: bool = True  # large files come from another address, as the Hub's do
    delay: float = 0.0  # seconds before a file's bytes are sent
    signature_uses: int = 10**9  # how often an address of storage works
    signatures: dict[str, int] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of files after which no file is sent any more
    active: int = 0  # files that are being sent, and the most at one time
    most_active: int = 0


class _Quiet(ThreadingHTTPServer):
    """Clients hang up in the middle, and a command's standard error is ours as well; what else goes wrong is shown."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class HubServer:
    """The server; its address is known at once, it answers from `start` on."""

    def __init__(self) -> None:
        from .handler import Handler

        self.state = State()
        self.lock = threading.Lock()
        hub = self

        class Bound(Handler):
            server_state = property(lambda _: hub)  # type: ignore[assignment]

        self.http = _Quiet(("127.0.0.1", 0), Bound)
        self.http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread: threading.Thread | None = None

    def start(self) -> HubServer:
        if self.thread is None:
            self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
            self.thread.start()
        return self

    def reset(self) -> None:
        self.state = State()

    # --- what tests set up

    def add(self, name: str, folder: Path | None = None, **options: bool) -> Repository:
        """A repository with the files of `folder`."""
        made = self.state.repositories[name] = Repository(name, **options)
        if folder is not None:
            made.add_folder(folder)
        return made

    def fail(self, kind: int | str, method: str, path: str, times: int = 1, after: int = 0) -> None:
        """Let the next requests whose path matches the expression go wrong."""
        self.state.faults.append(Fault(kind, method, path, times, after))

    # --- what tests look at

    def served(self, ending: str = "") -> int:
        """Bytes of files that left this server, by the end of their names."""
        return sum(count for path, count in self.state.served.items() if path.endswith(ending))

    def received(self, ending: str = "") -> int:
        """Bytes of large files that arrived here, by the end of their repository's name."""
        return sum(count for name, count in self.state.received.items() if name.endswith(ending))

    def requests(self, method: str, path: str = "") -> list[Seen]:
        return [seen for seen in self.state.seen if seen.method == method and re.search(path, seen.path)]

    # --- what the handler needs

    def fault(self, method: str, path: str, wanted: Callable[[Fault], bool]) -> Fault | None:
        with self.lock:
            for fault in self.state.faults:
                if fault.matches(method, path) and wanted(fault):
                    fault.times -= 1
                    return fault
        return None

    def count(self, counter: dict[str, int], name: str, nbytes: int) -> None:
        with self.lock:
            counter[name] = counter.get(name, 0) + nbytes
