"""What the local Hub tells and hands out."""

from __future__ import annotations

import re
import threading
from urllib.parse import parse_qs, urlsplit

from .exchange import Dropped, Exchange, Refused


class Reads(Exchange):
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
        if repository.gated:
            raise Refused(403, "GatedRepo", "Access to this model is restricted")
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
