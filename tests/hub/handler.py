"""The requests of the local Hub, one method each."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .repository import Blob, Repository, is_large

if TYPE_CHECKING:
    from .server import HubServer

NAME = r"(?P<name>[^/]+/[^/]+)"
ROUTES = (
    ("POST", r"/api/repos/create", "create_repo"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("POST", rf"/api/models/{NAME}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/api/models/{NAME}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", rf"/api/models/{NAME}/branch/(?P<branch>[^/]+)", "create_branch"),
    ("POST", rf"/api/models/{NAME}/paths-info/(?P<revision>[^/]+)", "paths_info"),
    ("GET", rf"/api/models/{NAME}/refs", "list_refs"),
    ("GET", rf"/api/models/{NAME}/tree/(?P<revision>[^/]+)(/(?P<under>.+))?", "tree"),
    ("GET", rf"/api/models/{NAME}(/revision/(?P<revision>[^/]+))?", "info"),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", rf"/lfs/{NAME}/(?P<sha>[0-9a-f]+)(/(?P<part>\d+))?", "lfs_put"),
    ("POST", rf"/lfs/{NAME}/(?P<sha>[0-9a-f]+)", "lfs_complete"),
    ("POST", rf"/lfs-verify/{NAME}", "lfs_verify"),
    ("GET", rf"/cdn/{NAME}/(?P<sha>[0-9a-f]+)/(?P<path>.+)", "cdn"),
    ("GET", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
)


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Dropped(Exception):
    """The connection is to be closed without another byte."""


class Handler(BaseHTTPRequestHandler):
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
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, name in ROUTES:
            if wanted == method and (found := re.fullmatch(pattern, path)):
                getattr(self, name)(
                    **{key: unquote(value) for key, value in found.groupdict().items() if value is not None}
                )
                return
        raise Refused(404, message=f"no such route: {self.command} {path}")

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

    # --- reading

    def info(self, name: str, revision: str = "main") -> None:
        repository = self.repository(name)
        commit = self.at(repository, revision)
        siblings = [{"rfilename": path} for path in repository.commits[commit]]
        self.reply(
            {
                "_id": name,
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repository.private,
                "siblings": siblings,
            }
        )

    def tree(self, name: str, revision: str, under: str = "") -> None:
        repository = self.repository(name)
        files = repository.commits[self.at(repository, revision)]
        entries = [blob.entry(path) for path, blob in sorted(files.items()) if path.startswith(under)]
        if "recursive" not in self.query or self.query["recursive"][0].lower() not in ("1", "true"):
            cut = len(under) + 1 if under else 0
            folders = {
                path[:cut] + path[cut:].split("/")[0] for path in files if path.startswith(under) and "/" in path[cut:]
            }
            entries = [entry for entry in entries if "/" not in str(entry["path"])[cut:]]
            entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders)]
        self.reply(entries)

    def paths_info(self, name: str, revision: str) -> None:
        repository = self.repository(name)
        files = repository.commits[self.at(repository, revision)]
        wanted = parse_qs(self.body.decode())["paths"] if self.body[:1] != b"{" else self.json()["paths"]
        self.reply([files[path].entry(path) for path in wanted if path in files])

    def list_refs(self, name: str) -> None:
        refs = self.repository(name).refs
        branches = [r for r in refs if not r.startswith("refs/")]
        self.reply(
            {
                "branches": [{"name": r, "ref": f"refs/heads/{r}", "targetCommit": refs[r]} for r in branches],
                "converts": [],
                "tags": [],
                "pullRequests": [
                    {"name": r, "ref": r, "targetCommit": refs[r]} for r in refs if r.startswith("refs/pr/")
                ],
            }
        )

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self.repository(name)
        if repository.gated:
            raise Refused(403, "GatedRepo", "Access to this model is restricted")
        commit = self.at(repository, revision)
        blob = repository.commits[commit].get(path)
        if blob is None:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob.etag}"'}
        if blob.lfs and self.server_state.state.redirect:
            headers |= {"X-Linked-Size": str(len(blob.data)), "X-Linked-ETag": f'"{blob.etag}"'}
            address = self.server_state.endpoint.replace("127.0.0.1", "localhost")
            signature = str(len(self.server_state.state.seen))
            self.send(302, Location=f"{address}/cdn/{name}/{blob.sha256}/{path}?Signature={signature}", **headers)
            return
        self.content(name, path, blob.data, **headers)

    def cdn(self, name: str, sha: str, path: str) -> None:
        """Storage: it knows signed addresses, and no tokens; sending one there would give it away."""
        if self.token is not None:
            raise Refused(400, message="a token was sent to the storage")
        hub, (signature,) = self.server_state, self.query["Signature"]
        hub.count(hub.state.signatures, signature, 1)
        if hub.state.signatures[signature] > hub.state.signature_uses:
            raise Refused(403, message="the signature has expired")
        for blob in [b for tree in self.server_state.state.repositories[name].commits.values() for b in tree.values()]:
            if blob.lfs and blob.sha256 == sha:
                self.content(name, path, blob.data, ETag=f'"{sha}"')
                return
        raise Refused(404)

    def content(self, name: str, path: str, data: bytes, **headers: str) -> None:
        hub, status, part = self.server_state, 200, data
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and self.kind != "ignore-range":
            first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
            if first >= len(data):
                raise Refused(416)
            status, part = 206, data[first : last + 1]
            headers |= {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}
        if self.kind == "corrupt":
            part = bytes([part[0] ^ 1]) + part[1:]
        if self.command == "HEAD":
            self.send(status, length=str(len(part)), **headers)
            return
        self.wait()
        if hub.state.cut_after is not None and sum(hub.state.served.values()) >= hub.state.cut_after:
            raise Dropped
        fault = hub.fault(self.command, urlsplit(self.path).path, lambda fault: fault.after > 0)
        kept = part[: fault.after] if fault else part
        hub.count(hub.state.served, f"{name}/{path}", len(kept))
        self.send(status, kept, "application/octet-stream", Accept_Ranges="bytes", length=str(len(part)), **headers)
        if fault:
            raise Dropped

    def wait(self) -> None:
        """Be slow where asked to, and count who else is being served."""
        hub = self.server_state
        if not self.path.partition("?")[0].endswith(".safetensors"):
            return
        with hub.lock:
            hub.state.active += 1
            hub.state.most_active = max(hub.state.most_active, hub.state.active)
        threading.Event().wait(hub.state.delay)
        with hub.lock:
            hub.state.active -= 1

    # --- writing

    def create_repo(self) -> None:
        from .server import TOKEN

        wanted, state = self.json(), self.server_state.state
        name = f"{wanted.get('organization') or 'someone'}/{wanted['name']}"
        if self.token != TOKEN:
            raise Refused(
                403 if self.token in state.readers else 401, message="Invalid credentials in Authorization header"
            )
        if name in state.repositories:
            self.reply({"url": f"{self.server_state.endpoint}/{name}", "error": "You already created this repo"}, 409)
            return
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        state.repositories[name] = Repository(name, private=private)
        self.reply({"url": f"{self.server_state.endpoint}/{name}", "name": name, "id": name})

    def create_branch(self, name: str, branch: str) -> None:
        repository = self.repository(name, write=True)
        if branch in repository.refs:
            raise Refused(409, message="Reference already exists")
        repository.refs[branch] = self.at(repository, (self.json() or {}).get("startingPoint") or "main")
        self.reply({})

    def validate_yaml(self) -> None:
        found = re.match(r"---\n(.*?)\n---\n", self.json()["content"], re.DOTALL)
        try:
            fields = yaml.safe_load(found[1]) if found else None
        except yaml.YAMLError as problem:
            self.reply({"errors": [{"message": str(problem)}], "warnings": []}, 400)
            return
        empty = [] if isinstance(fields, dict) else [{"message": "empty or missing yaml metadata in repo card"}]
        self.reply({"errors": [], "warnings": empty})

    def preupload(self, name: str, revision: str) -> None:
        pull_request = "create_pr" in self.query
        repository = self.repository(name, write=not pull_request)
        files = repository.commits[self.at(repository, revision)]
        self.reply({"files": [self.mode(entry, files) for entry in self.json()["files"]]})

    @staticmethod
    def mode(entry: dict[str, Any], files: dict[str, Blob]) -> dict[str, Any]:
        path = entry["path"]
        mode = "lfs" if is_large(path, entry["size"]) else "regular"
        there = files.get(path)
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": there.etag if there else None}

    def lfs_batch(self, name: str) -> None:
        repository, state = self.repository(name, write=True), self.server_state.state
        objects = []
        for wanted in self.json()["objects"]:
            sha, size = wanted["oid"], wanted["size"]
            found = {"oid": sha, "size": size}
            if not self.holds(repository, sha) and not self.committed(repository, sha):
                address = f"{self.server_state.endpoint}/lfs/{name}/{sha}"
                header: dict[str, str] = {}
                if size > state.part_size:
                    count = -(-size // state.part_size)
                    header = {
                        "chunk_size": str(state.part_size),
                        **{str(i): f"{address}/{i}" for i in range(1, count + 1)},
                    }
                verify = {"href": f"{self.server_state.endpoint}/lfs-verify/{name}"}
                found["actions"] = {"upload": {"href": address, "header": header}, "verify": verify}
            objects.append(found)
        self.reply({"transfer": "basic", "objects": objects})

    @staticmethod
    def holds(repository: Repository, sha: str) -> bool:
        """What storage took and does not hash to its name is not there."""
        return hashlib.sha256(repository.lfs.get(sha, b"")).hexdigest() == sha

    @staticmethod
    def committed(repository: Repository, sha: str) -> bool:
        return any(blob.lfs and blob.sha256 == sha for tree in repository.commits.values() for blob in tree.values())

    def lfs_put(self, name: str, sha: str, part: str = "") -> None:
        """Storage, as for downloads: the address itself is the permission."""
        hub, data = self.server_state, self.body
        if self.kind == "corrupt":
            data = bytes([data[0] ^ 1]) + data[1:]
        hub.count(hub.state.received, name, len(data))
        if part:
            hub.state.parts.setdefault(sha, {})[int(part)] = data
        else:
            hub.state.repositories[name].lfs[sha] = data
        self.send(200, ETag=f'"{hashlib.md5(data).hexdigest()}"')

    def lfs_complete(self, name: str, sha: str) -> None:
        parts = self.server_state.state.parts.pop(sha)
        assert [part["partNumber"] for part in self.json()["parts"]] == sorted(parts)
        self.server_state.state.repositories[name].lfs[sha] = b"".join(parts[i] for i in sorted(parts))
        self.reply({})

    def lfs_verify(self, name: str) -> None:
        wanted = self.json()
        data = self.server_state.state.repositories[name].lfs.get(wanted["oid"], b"")
        if len(data) != wanted["size"]:
            raise Refused(422, message="size mismatch")
        self.reply({})

    def commit(self, name: str, revision: str) -> None:
        pull_request = "create_pr" in self.query
        repository = self.repository(name, write=not pull_request)
        lines = [json.loads(line) for line in self.body.splitlines()]
        changes: dict[str, Blob | None] = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                changes[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
            elif line["key"] == "lfsFile":
                changes[value["path"]] = Blob(self.stored(repository, value["oid"]), lfs=True)
            else:
                changes[value["path"]] = None
        with self.server_state.lock:
            parent = lines[0]["value"].get("parentCommit")
            if not pull_request and parent not in (None, self.at(repository, revision)):
                raise Refused(412, message="A commit has happened since. Please refresh and try again.")
            if absent := [path for path in changes if changes[path] is None and path not in repository.tree(revision)]:
                raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {absent[0]}")
            ref = repository.open_pull_request() if pull_request else revision
            commit = repository.commit(ref, changes, lines[0]["value"]["summary"])
        endpoint = self.server_state.endpoint
        pull = f"{endpoint}/{name}/discussions/{ref.rsplit('/', 1)[-1]}" if pull_request else None
        self.reply({"commitUrl": f"{endpoint}/{name}/commit/{commit}", "commitOid": commit, "pullRequestUrl": pull})

    def stored(self, repository: Repository, sha: str) -> bytes:
        if sha in repository.lfs:
            return repository.lfs[sha]
        for tree in repository.commits.values():
            for blob in tree.values():
                if blob.lfs and blob.sha256 == sha:
                    return blob.data
        raise Refused(400, message=f"LFS object {sha} was not uploaded")
