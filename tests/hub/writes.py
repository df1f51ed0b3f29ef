"""What is sent to the local Hub: repositories, large files, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import yaml

from .exchange import Exchange, Refused
from .repository import Blob, Repository, is_large


class Writes(Exchange):
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
            ref = repository.open_pull_request(parent) if pull_request else revision
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
