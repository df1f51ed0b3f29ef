"""Names of what tests publish, and what arrived."""

from __future__ import annotations

from tests.hub.server import HubServer

NAME, BASE = "someone/head", "someone/smollm2"


def pushed(hub: HubServer, name: str = NAME, revision: str = "main") -> dict[str, bytes]:
    return {path: blob.data for path, blob in hub.state.repositories[name].tree(revision).items()}
