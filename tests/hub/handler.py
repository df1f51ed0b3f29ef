"""The requests of the local Hub, one method each."""

from __future__ import annotations

import re
from urllib.parse import unquote

from .exchange import Refused
from .reads import Reads
from .writes import Writes

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


class Handler(Reads, Writes):
    def route(self, path: str) -> None:
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, name in ROUTES:
            if wanted == method and (found := re.fullmatch(pattern, path)):
                getattr(self, name)(
                    **{key: unquote(value) for key, value in found.groupdict().items() if value is not None}
                )
                return
        raise Refused(404, message=f"no such route: {self.command} {path}")
