"""Where a registry lies, and that a folder of entries loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_tools.errors import NotFound
from ckpt_tools.registry.local import Folder
from ckpt_tools.registry.manifest import Measured, read_entry
from ckpt_tools.registry.store import amend, get, opened, put
from tests.conftest import Command

from .writers import an_entry, assert_nothing_is_lost


@pytest.mark.parametrize(
    ("ref", "environment", "where"),
    [
        (None, {"CKPT_TOOLS_REGISTRY": "/somewhere"}, "/somewhere"),
        (None, {"XDG_DATA_HOME": "/data"}, "/data/ckpt-tools/registry"),
        (None, {}, str(Path.home() / ".local/share/ckpt-tools/registry")),
        ("/here", {"CKPT_TOOLS_REGISTRY": "/somewhere"}, "/here"),
        ("~/heads", {}, str(Path.home() / "heads")),
        ("org/heads@team", {}, "hf://org/heads@team"),
        ("hf://org/heads", {}, "hf://org/heads"),
        (None, {"CKPT_TOOLS_REGISTRY": "hf://org/heads"}, "hf://org/heads"),
        ("./org/heads", {}, str(Path.cwd() / "org/heads")),
    ],
)
def test_where_it_is(ref: str | None, environment: dict[str, str], where: str) -> None:
    assert opened(ref, environment).where == where


def test_the_commands_look_there(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert command("registry", "list", "--json").result["heads"] == []
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CKPT_TOOLS_REGISTRY", str(tmp_path))
    assert command("registry", "list", "--json").result["registry"] == str(tmp_path)


@pytest.mark.parametrize("kind", ["absent", "a file", "unreadable"])
def test_what_is_no_registry_is_not_an_empty_one(tmp_path: Path, command: Command, kind: str) -> None:
    place = tmp_path / "registry"
    if kind == "a file":
        place.write_text("{}")
    if kind == "unreadable":
        place.symlink_to(place)
    target = tmp_path / "target"
    target.mkdir()
    for words in (("list",), ("check",), ("show", "x"), ("resolve", target)):
        ran = command("registry", *words, "--registry", place, "--json", code=3)
        assert ran.codes == ["registry-not-found"]


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    assert_nothing_is_lost(Folder(tmp_path / "registry"), tmp_path, writers=4, rounds=20)
    assert {path.suffix for path in (tmp_path / "registry").iterdir()} == {".json", ""}


def test_a_failed_write_leaves_the_old_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Folder(tmp_path)
    put(place, an_entry())
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError):
        put(place, an_entry().model_copy(update={"kind": "mtp"}), overwrite=True)
    assert get(place, "x").kind == "eagle3"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "x.json"]


def test_entries_round_trip(tmp_path: Path) -> None:
    put(Folder(tmp_path), an_entry())
    assert read_entry(tmp_path / "x.json") == an_entry()


def test_amending_keeps_what_others_changed(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    put(place, an_entry())
    put(place, an_entry().model_copy(update={"kind": "mtp"}), overwrite=True)
    amend(place, "x", measured=Measured(accept_length=3))
    assert get(place, "x") == an_entry().model_copy(update={"kind": "mtp", "measured": Measured(accept_length=3)})
    with pytest.raises(NotFound):
        amend(place, "y", kind="mtp")
