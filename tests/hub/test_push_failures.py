"""push when something breaks on the way: what is said, what the repository is then, and what a rerun sends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd

from ckpt_tools.hub import sending
from ckpt_tools.hub.parcel import Sent
from tests.checkpoints import tree
from tests.conftest import Command, Tiny
from tests.drafts.heads import target_of
from tests.hub.publishing import BASE, NAME, pushed
from tests.hub.server import HubServer

STAGES = {
    "repository": ("POST", "/api/repos/create"),
    "files": ("POST", "/preupload/"),
    "objects": ("POST", "/objects/batch"),
    "storage": ("PUT", "/lfs/"),
    "verification": ("POST", "/lfs-verify/"),
    "commit": ("POST", "/commit/"),
}
# The endless ones are over when the second run begins; "lost" was carried out.
KINDS: dict[str | int, tuple[str, int]] = {
    "drop": ("upload-failed", 1),
    "lost": ("upload-failed", 1),
    503: ("upload-failed", 1),
    401: ("hub-not-authorised", 4),
}
MODEL = "someone/model"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_at_every_stage(
    hub: HubServer, head: Path, base: str, command: Command, stage: str, kind: str | int
) -> None:
    """Nothing or everything is on the branch, never a part; the second run makes it everything."""
    hub.fail(kind, *STAGES[stage], times=1000)
    code, status = KINDS[kind]
    ran = command("push", head, NAME, "--target", base, "--json", code=status)
    assert ran.codes == [code]
    weights = (head / "model.safetensors").read_bytes()
    repository = hub.state.repositories.get(NAME)
    before = pushed(hub) if repository else {}
    assert not before or (before["model.safetensors"] == weights and "config.json" in before)
    assert bool(before) == (kind == "lost" and stage == "commit")
    hub.state.faults.clear()
    already = hub.received()
    command("push", head, NAME, "--target", base)
    assert pushed(hub)["model.safetensors"] == weights
    complete = stage in ("verification", "commit")  # a part of a file whose answer was lost does not count
    assert hub.received() - already == (0 if complete else len(weights))


def test_a_shard_that_never_arrives(
    hub: HubServer, tiny: Tiny, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are sent once, this one by the next run; batches end between them."""
    monkeypatch.setattr(sending, "BATCH", 1)
    model = tiny("qwen3", layers=6, shards=3)
    shards = sorted(model.glob("*.safetensors"))
    assert len(shards) == 3
    hub.fail("drop", "PUT", hashlib.sha256(shards[1].read_bytes()).hexdigest(), times=1000)
    ran = command("push", model, MODEL, "--license", "mit", "--json", code=1)
    assert ran.codes == ["upload-failed"] and pushed(hub, MODEL) == {}
    assert hub.received() == shards[0].stat().st_size
    hub.state.faults.clear()
    command("push", model, MODEL, "--license", "mit")
    assert hub.received() == sum(shard.stat().st_size for shard in shards)
    assert len(hub.state.repositories[MODEL].commits) == 2
    assert {"config.json", "model.safetensors.index.json", *(s.name for s in shards)} <= pushed(hub, MODEL).keys()


@pytest.mark.parametrize("part_size", [1 << 30, 1 << 20])
@pytest.mark.parametrize("kind", ["drop", 503])
def test_a_storage_that_recovers(
    hub: HubServer, head: Path, base: str, command: Command, kind: str | int, part_size: int
) -> None:
    hub.state.part_size = part_size
    hub.fail(kind, "PUT", "/lfs/", times=2)
    command("push", head, NAME, "--target", base)
    assert pushed(hub)["model.safetensors"] == (head / "model.safetensors").read_bytes()


def test_other_bytes_than_their_hash(hub: HubServer, head: Path, base: str, command: Command) -> None:
    """The commit is compared with the files afterwards: a file of another hash is named, and the next run sends it again."""
    hub.fail("corrupt", "PUT", "/lfs/")
    ran = command("push", head, NAME, "--target", base, "--json", code=1)
    assert ran.codes == ["hub-differs"] and ran.findings[0]["actual"] == "model.safetensors"
    ran = command("push", head, NAME, "--target", base, "--json")
    assert [file["path"] for file in ran.result["files"] if file["state"] != "unchanged"] == ["model.safetensors"]
    assert pushed(hub)["model.safetensors"] == (head / "model.safetensors").read_bytes()


def test_not_authorised(
    hub: HubServer, head: Path, base: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.state.readers.add("hf_reader")
    for token in ("hf_reader", "hf_unknown" + "x" * 30):
        monkeypatch.setenv("HF_TOKEN", token)
        words = ("push", head, NAME, "--target", base if token == "hf_reader" else head.parent / "target")
        ran = command(*words, "--base-model", BASE, "--json", code=4)
        assert ran.codes == ["hub-not-authorised"] and token not in ran.out
    hub.add("someone/theirs")
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    command("push", head, "someone/theirs", "--target", base, "--json", code=4)
    assert hub.received() == 0


def test_weights_of_an_earlier_push(hub: HubServer, tiny: Tiny, command: Command) -> None:
    """Fewer shards than before: those that are left would be loaded with the new ones, or their index would."""
    words = (MODEL, "--license", "mit", "--json")
    before, after = tiny("qwen3", layers=6, shards=3), tiny("qwen3", layers=6)
    command("push", before, *words)
    left = {path.name for path in before.glob("model*") if not (after / path.name).exists()}
    assert len(left) == 4, "three shards and their index"
    for more in ((), ("--dry-run",)):
        ran = command("push", after, *words, *more, code=1)
        assert ran.codes == ["hub-other-weights"]
    assert len(hub.state.repositories[MODEL].commits) == 2
    ran = command("push", after, *words, "--replace-weights")
    assert {file["path"] for file in ran.result["files"] if file["state"] == "removed"} == left
    assert not left & pushed(hub, MODEL).keys() and "model.safetensors" in pushed(hub, MODEL)
    assert len(hub.state.repositories[MODEL].commits) == 3, "in the same commit"


def test_other_files_stay(hub: HubServer, head: Path, base: str, command: Command, tmp_path: Path) -> None:
    """Notes, a folder of another form, arguments of a trainer: no server takes them for the weights."""
    kept = {"notes.txt": b"a", "gguf/model.safetensors": b"b", "training_args.bin": b"c"}
    for name, data in kept.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(data)
    hub.add(NAME, tmp_path / "there")
    command("push", head, NAME, "--target", base, "--replace-weights")
    assert {name: data for name, data in pushed(hub).items() if name in kept} == kept


def test_a_target_that_moved_meanwhile_is_still_the_one_that_was_checked(
    hub: HubServer, head: Path, base: str, command: Command, tmp_path: Path
) -> None:
    commit = base.partition("@")[2]
    other = target_of("eagle3", tmp_path / "other")
    os.utime(other / "config.json")
    hub.state.repositories[BASE].commit("main", {}, "moved")
    command("push", head, NAME, "--target", base)
    assert commit in pushed(hub)["README.md"].decode()


def test_a_new_branch_has_the_weights_of_main(hub: HubServer, tiny: Tiny, command: Command) -> None:
    """The Hub makes it from the main branch: other weights there are other weights here, before the branch is made as well."""
    words = (MODEL, "--license", "mit", "--json")
    before, after = tiny("qwen3", layers=6, shards=3), tiny("qwen3", layers=6)
    command("push", before, *words)
    there = dict(pushed(hub, MODEL))
    for more in ((), ("--dry-run",)):
        ran = command("push", after, *words, "--revision", "v2", *more, code=1)
        assert ran.codes == ["hub-other-weights"]
    assert "v2" not in hub.state.repositories[MODEL].refs
    ran = command("push", after, *words, "--revision", "v2", "--replace-weights")
    weights = {name for name in pushed(hub, MODEL, "v2") if ".safetensors" in name}
    assert weights == {"model.safetensors"} and pushed(hub, MODEL) == there


@pytest.mark.parametrize("revision", ["main", "v2"])
def test_two_pushes_at_once(
    hub: HubServer, tiny: Tiny, command: Command, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """Both saw the same files; the second would put its weights beside those of the first."""
    before, after = tiny("qwen3", layers=6, shards=3), tiny("qwen3", layers=6)
    repository = hub.add(MODEL)
    batches = sending._batches

    def late(operations: list[CommitOperationAdd]) -> Iterator[list[CommitOperationAdd]]:
        repository.add_folder(before, revision)
        return batches(operations)

    monkeypatch.setattr(sending, "_batches", late)
    words = ("push", after, MODEL, "--license", "mit", "--revision", revision, "--json")
    assert command(*words, code=1).codes == ["hub-moved"]
    assert pushed(hub, MODEL, revision) == tree(before)
    monkeypatch.setattr(sending, "_batches", batches)
    assert command(*words, code=1).codes == ["hub-other-weights"]


def test_a_repository_that_somebody_else_made_meanwhile(
    hub: HubServer, head: Path, base: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftovers = sending._leftovers

    def late(*words: Any) -> list[Sent]:
        hub.add(NAME, head)
        return leftovers(*words)

    monkeypatch.setattr(sending, "_leftovers", late)
    ran = command("push", head, NAME, "--target", base, "--json", code=1)
    assert ran.codes == ["hub-moved"] and len(hub.state.repositories[NAME].commits) == 2


def test_what_cannot_be_compared(hub: HubServer, head: Path, base: str, command: Command) -> None:
    """A repository that asks for access is not an empty one, and nobody makes a pull request by naming it."""
    hub.add("someone/gated", head, gated=True)
    for more in ((), ("--dry-run",)):
        ran = command("push", head, "someone/gated", "--target", base, *more, "--json", code=4)
        assert ran.codes == ["hub-gated"]
    hub.add(NAME)
    ran = command("push", head, NAME, "--target", base, "--revision", "refs/pr/9", "--dry-run", "--json", code=3)
    assert ran.codes == ["hub-not-found"]
