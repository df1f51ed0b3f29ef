"""A large upload that fails part-way: what arrived is not sent again, and nobody sees half a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.conftest import Command, Tiny
from tests.hub.server import HubServer

NAME, SHARDS = "someone/model", 5


@pytest.fixture
def shards(tiny: Tiny) -> list[Path]:
    return sorted(tiny("qwen3", shards=SHARDS).glob("*.safetensors"))


def oid(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def uploads(hub: HubServer, path: Path, answered: bool = True) -> int:
    """How often a file was sent, and taken."""
    return sum(seen.status == 200 or not answered for seen in hub.requests("PUT", f"/lfs/.*{oid(path)}"))


def test_a_rerun_sends_what_is_missing(hub: HubServer, shards: list[Path], command: Command) -> None:
    """One bad file cancels everything and the next try begins anew (huggingface/huggingface_hub#2083, #1801, #3747)."""
    words = ("push", shards[0].parent, NAME, "--license", "mit", "--json")
    hub.fail(503, "PUT", f"/lfs/.*{oid(shards[2])}", times=2)
    hub.fail("drop", "PUT", f"/lfs/.*{oid(shards[3])}", times=99)
    assert command(*words, code=1).codes == ["upload-failed"]
    assert hub.state.repositories[NAME].tree("main") == {}, "nothing is seen before everything is there"
    first = [uploads(hub, path) for path in shards]
    assert first[3] == 0 and max(first) == 1
    hub.state.faults.clear()
    ran = command(*words)
    assert [uploads(hub, path) for path in shards] == [1] * SHARDS
    tree = hub.state.repositories[NAME].tree("main")
    assert {path.name: tree[path.name].data for path in shards} == {path.name: path.read_bytes() for path in shards}
    assert {"config.json", "model.safetensors.index.json"} <= tree.keys()
    assert len(hub.state.repositories[NAME].commits) == 2, "index, config and shards come in one commit"
    assert {file["state"] for file in ran.result["files"]} == {"new"}


def test_a_file_that_fails_now_and_then_is_tried_again(hub: HubServer, shards: list[Path], command: Command) -> None:
    hub.fail(503, "PUT", f"/lfs/.*{oid(shards[2])}", times=2)
    command("push", shards[0].parent, NAME, "--license", "mit")
    assert [uploads(hub, path, answered=False) for path in shards] == [1, 1, 3, 1, 1]


def test_a_broken_folder_is_not_sent_at_all(hub: HubServer, shards: list[Path], command: Command) -> None:
    shards[4].unlink()
    assert "shard-missing" in command("push", shards[0].parent, NAME, "--license", "mit", "--json", code=1).codes
    assert NAME not in hub.state.repositories and not hub.requests("PUT") and not hub.requests("POST")
