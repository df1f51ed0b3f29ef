"""A registry in a Hub repository: read at its newest commit, written by commits that lose nothing of others'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from ckpt_tools.errors import CkptError, NotAuthorised, NotFound, OutputExists, UsageProblem
from ckpt_tools.registry import hub as hub_registry
from ckpt_tools.registry.hub import Repository
from ckpt_tools.registry.manifest import Measured
from ckpt_tools.registry.store import amend, get, put, read_all, remove
from tests.command import Ran
from tests.conftest import Command
from tests.drafts.heads import eagle3, target, write_tokenizer
from tests.hub.server import HubServer

from .writers import an_entry, assert_nothing_is_lost

NAME = "team/heads"
COMMIT = f"/api/models/{NAME}/commit/main"
Run = Callable[..., Ran]


@pytest.fixture
def place(hub: HubServer) -> Repository:
    hub.add(NAME)
    return Repository(NAME)


@pytest.fixture
def registry(place: Repository, command: Command) -> Run:
    def call(verb: str, *words: object, code: int = 0) -> Ran:
        return command("registry", verb, *words, "--registry", NAME, "--json", code=code)

    return call


def named(name: str, **fields: object) -> object:
    return an_entry().model_copy(update={"name": name, **fields})


def names(place: Repository) -> list[str]:
    return [entry.name for entry in read_all(place).result]


def test_every_verb(hub: HubServer, registry: Run, tmp_path: Path) -> None:
    """Head and target on the Hub, registry on the Hub: add, list, show, check, resolve, remove, one commit each write."""
    model = target(tmp_path / "target", weights=True)
    write_tokenizer(model, 32)
    hub.add("org/target", model)
    hub.add("org/head", eagle3(tmp_path / "head"))
    added = registry("add", "org/head", "--target", "org/target", "--name", "one", "--accept-length", 2.5)
    assert added.codes == [] and added.result["registry"] == f"hf://{NAME}"
    repository = hub.state.repositories[NAME]
    assert repository.messages == ["initial commit", "Register one"]
    assert json.loads(repository.tree()["one.json"].data)["target_location"] == "org/target"
    assert registry("list").result["heads"] == registry("show", "one").result["heads"] == added.result["heads"]
    assert registry("check").codes == registry("check", "one").codes == []
    assert [head["entry"]["name"] for head in registry("resolve", "org/target").result["heads"]] == ["one"]
    registry("remove", "one")
    assert repository.messages[-1] == "Remove one" and "one.json" not in repository.tree()
    assert registry("list").result["heads"] == [] and registry("remove", "one", code=3).codes == ["head-not-registered"]


def test_places_that_only_this_machine_knows_are_said(registry: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target", weights=True)
    write_tokenizer(model, 32)
    found = registry("add", eagle3(tmp_path / "head"), "--target", model, "--name", "one").finding("location-local")
    assert str(tmp_path / "head") in found["actual"] and found["severity"] == "warning"


def test_a_branch_is_a_registry_of_its_own(hub: HubServer, place: Repository) -> None:
    hub.state.repositories[NAME].refs["trial"] = hub.state.repositories[NAME].refs["main"]
    put(Repository(f"hf://{NAME}@trial"), named("x"))
    assert names(place) == [] and names(Repository(f"{NAME}@trial")) == ["x"]


def test_what_was_read_is_what_is_there_now(hub: HubServer, place: Repository) -> None:
    """Not what the cache holds: others write as well. Offline, the cache is all there is."""
    put(place, named("x"))
    assert names(place) == ["x"]
    hub.state.repositories[NAME].commit("main", {"x.json": None}, "by another")
    assert names(place) == []


def test_offline_it_is_what_was_seen_last(place: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, named("x"))
    assert names(place) == ["x"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert names(place) == ["x"]


def test_a_hub_that_fails_is_no_empty_registry(hub: HubServer, place: Repository) -> None:
    """Although the cache has an answer."""
    put(place, named("x"))
    assert names(place) == ["x"]
    hub.fail(500, "GET", f"/api/models/{NAME}", times=99)
    with pytest.raises(NotFound, match="hub-unreachable"):
        read_all(place)


# --- two at once


def test_concurrent_writers_lose_nothing(hub: HubServer, place: Repository, tmp_path: Path) -> None:
    assert_nothing_is_lost(place, tmp_path, writers=2, rounds=6)
    assert any(seen.status == 412 for seen in hub.requests("POST", COMMIT)), "they never met"


def meanwhile(hub: HubServer, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Let another writer commit between our reading and our first commit."""
    ours, done = hub_registry.commit, []

    def late(*words: object) -> None:
        if not done:
            done.append(True)
            for name, entry in changes.items():
                remove(Repository(NAME), name) if entry is None else put(Repository(NAME), entry, True)
        ours(*words)

    monkeypatch.setattr(hub_registry, "commit", late)


def test_a_name_that_was_taken_meanwhile(hub: HubServer, place: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(hub, monkeypatch, x=named("x", kind="mtp"))
    with pytest.raises(OutputExists, match="name-taken"):
        put(place, named("x"))
    assert get(place, "x").kind == "mtp"


def test_an_entry_that_was_removed_meanwhile(
    hub: HubServer, place: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place, named("x"))
    meanwhile(hub, monkeypatch, x=None)
    with pytest.raises(NotFound, match="head-not-registered"):
        amend(place, "x", measured=None)
    assert names(place) == []


def test_an_entry_that_was_changed_meanwhile(
    hub: HubServer, place: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place, named("x"))
    meanwhile(hub, monkeypatch, x=named("x", kind="mtp"), y=named("y"))
    amend(place, "x", measured=Measured(accept_length=3))
    assert names(place) == ["x", "y"]
    assert (get(place, "x").kind, get(place, "x").measured) == ("mtp", Measured(accept_length=3))


# --- what may go wrong


@pytest.mark.parametrize("kind", [409, 412, 500, 503, "drop", "lost"])
def test_a_commit_that_fails_once(hub: HubServer, place: Repository, kind: int | str) -> None:
    """Locked, moved, in trouble, cut off; and made, but never answered: one commit in the end."""
    hub.fail(kind, "POST", COMMIT)
    put(place, named("x"))
    assert names(place) == ["x"] and len(hub.state.repositories[NAME].messages) == 2


def test_a_removal_that_was_never_answered(hub: HubServer, place: Repository) -> None:
    put(place, named("x"))
    hub.fail("lost", "POST", COMMIT)
    assert remove(place, "x") == named("x") and names(place) == []


def test_a_registry_that_stays_busy(hub: HubServer, place: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_registry, "PATIENCE", 0.2)
    hub.fail(409, "POST", COMMIT, times=10**6)
    with pytest.raises(CkptError, match="registry-busy"):
        put(place, named("x"))
    assert names(place) == []


def test_who_may_not_write(hub: HubServer, place: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.state.readers.add("hf_reader")
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    with pytest.raises(NotAuthorised):
        put(place, named("x"))
    assert names(place) == []


def test_a_repository_is_not_made_by_the_way(hub: HubServer) -> None:
    """Who may see it is for its owner to say."""
    with pytest.raises(NotFound, match="hub-not-found"):
        put(Repository("team/other"), named("x"))
    assert hub.state.repositories == {}


def test_a_commit_is_read_and_not_written(hub: HubServer, place: Repository) -> None:
    put(place, named("x"))
    fixed = Repository(f"{NAME}@{hub.state.repositories[NAME].refs['main']}")
    put(place, named("y"))
    assert names(fixed) == ["x"]
    with pytest.raises(UsageProblem, match="registry-fixed"):
        put(fixed, named("z"))
