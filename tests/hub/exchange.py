"""One request of the local Hub and its answer: bodies, headers, tokens, faults."""

from __future__ import annotations

import contextlib
import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from .repository import Repository

if TYPE_CHECKING:
    from .server import HubServer


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Dropped(Exception):
    """The connection is to be closed without another byte."""


class Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def answer(self) -> None:
        hub, split = self.server_state, urlsplit(self.path)
        self.query = parse_qs(split.query)
        self.body = self.read_body()
        self.sent_status = 0
        try:
            self.kind = ""
            fault = hub.fault(self.command, split.path, lambda fault: isinstance(fault.kind, int) or fault.after == 0)
            if fault and isinstance(fault.kind, int):
                raise Refused(
                    fault.kind, message="Invalid credentials in Authorization header" if fault.kind == 401 else ""
                )
            if fault and fault.kind == "drop":
                raise Dropped
            self.kind = str(fault.kind) if fault else ""
            self.route(split.path)
        except Refused as refused:
            self.refuse(refused)
        except (Dropped, BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)
        finally:
            from .server import Seen

            hub.state.seen.append(
                Seen(self.command, self.path, self.sent_status, bool(self.headers.get("Authorization")))
            )

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def route(self, path: str) -> None:
        raise NotImplementedError

    # --- answers

    def send(self, status: int, data: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        if self.kind == "lost":
            raise Dropped
        self.sent_status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", headers.get("length", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def reply(self, value: Any, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode())

    def refuse(self, refused: Refused) -> None:
        headers = {"X-Error-Message": refused.message or "refused"}
        if refused.code:
            headers["X-Error-Code"] = refused.code
        self.send(refused.status, json.dumps({"error": refused.message}).encode(), **headers)

    def json(self) -> Any:
        return json.loads(self.body)

    # --- who may do what

    @property
    def token(self) -> str | None:
        value = self.headers.get("Authorization")
        return value.removeprefix("Bearer ") if value else None

    def repository(self, name: str, write: bool = False) -> Repository:
        """As the Hub answers: what a caller may not see does not exist for him."""
        from .server import TOKEN

        state, token = self.server_state.state, self.token
        if token is not None and token != TOKEN and token not in state.readers:
            raise Refused(401, message="Invalid credentials in Authorization header")
        found = state.repositories.get(name)
        if found is None or (found.private and token != TOKEN):
            raise Refused(401 if token is None else 404, "RepoNotFound", "Repository not found")
        if write and token != TOKEN:
            raise Refused(403, message="you need write access to this repository")
        return found

    def at(self, repository: Repository, revision: str) -> str:
        commit = repository.resolve(revision)
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit
