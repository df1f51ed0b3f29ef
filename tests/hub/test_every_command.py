"""Every command that reads, with every way of writing a Hub ref: the same outcome as from local folders, also offline."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from ckpt_tools.cli import COMMANDS
from ckpt_tools.refs import ranges
from tests.checkpoints import tree
from tests.conftest import Command, Tiny
from tests.hub.server import HubServer

BASE, HEAD, DIST = "someone/base", "someone/head", "someone/dist"
# {base} {head} {dist} are refs, {out} a new folder, {registry} and {samples} paths of the test's own.
WORDS = {
    "inspect": "inspect {base} --check",
    "inspect torch-dist": "inspect {dist} --check",
    "compare": "compare {base} {dist}",
    "megatron-args": "megatron-args {base}",
    "convert": "convert {base} {out}",
    "convert back": "convert {dist} {out}",
    "convert back with a config": "convert {dist} {out} --hf-config {base}",
    "verify-draft": "verify-draft {head} --target {base}",
    "verify-draft torch-dist": "verify-draft {dist} --target {base}",
    "extract-draft": "extract-draft {base} {out}",
    "extract-draft torch-dist": "extract-draft {dist} {out}",
    "merge-draft": "merge-draft {base} {head} {out}",
    "merge-draft torch-dist": "merge-draft {base} {dist} {out}",
    "export-draft": "export-draft {head} {out} --target {base}",
    "registry": "registry add {head} --target {base} --name h --registry {registry}",
    "preflight": "preflight --target {base} --torch-dist {dist} --draft {head} --args=--mtp-num-layers=1",
    "serve-args": "serve-args {base}",
    "serve-args with a head": "serve-args {base} {head}",
    "smoke": "smoke {base} {head} --steps 1 --max-new-tokens 3 --depths 0",
    "drift": "drift {base} {base} {head} --prompts {prompts} --max-new-tokens 3",
    "tune-draft": "tune-draft {base} {head} {out} --samples {samples} --rounds 1",
    "push": "push {made} someone/other --target {base} --base-model someone/base --license mit --dry-run",
}
NO_REFS = {"families"}
ASKS_THE_HUB = {"push"}  # what it has, also for a dry run
# What a target whose weights stay on the Hub cannot tell; and paths that are left out where they are local.
BY_PLACE = {"target-weights-unchecked", "path-left-out"}
FORMS: dict[str, Callable[[str], str]] = {
    "name": lambda name: name,
    "tag": lambda name: f"{name}@v1",
    "hf://": lambda name: f"hf://{name}@v1",
}


@pytest.fixture
def local(hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path) -> dict[str, Path]:
    """A model with an MTP layer, its head and its torch-dist checkpoint: here, and on the Hub under a tag."""
    base = tiny("mimo", mtp=1)
    places = {"base": base, "head": tmp_path / "head", "dist": tmp_path / "dist"}
    command("extract-draft", base, places["head"], "--target-name", BASE)
    command("convert", base, places["dist"])
    for name, folder in zip((BASE, HEAD, DIST), places.values(), strict=True):
        repository = hub.add(name, folder)
        repository.refs["v1"] = repository.refs["main"]
    (tmp_path / "samples").write_text('{"prompt": "w1 w4", "response": "w5 w6 w7 w8"}\n' * 4)
    (tmp_path / "prompts").write_text('["w1 w4", "w2 w3"]')
    return places


def words(name: str, refs: dict[str, object], base: Path, number: int) -> list[str]:
    """One command line; its output goes to `out<number>`."""
    own = {
        "out": base / f"out{number}",
        "registry": base / f"registry{number}",
        "samples": base / "samples",
        "prompts": base / "prompts",
        "made": base / "head",
    }
    return [*(word.format(**refs, **own) for word in WORDS[name].split()), "--json"]


def weights(folder: Path) -> dict[str, bytes]:
    return {
        name: data for name, data in tree(folder).items() if name.endswith((".safetensors", ".distcp", ".metadata"))
    }


def test_the_table_is_complete() -> None:
    assert {line.split()[0] for line in WORDS.values()} | NO_REFS == set(COMMANDS)


@pytest.mark.parametrize("name", WORDS)
def test_a_hub_ref_is_as_good_as_a_folder(
    hub: HubServer,
    local: dict[str, Path],
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    here = command(*words(name, dict(local), tmp_path, 0), code=None)
    assert here.code in (0, 1), here.findings
    refs = {"base": BASE, "head": HEAD, "dist": DIST}
    for number, form in enumerate(FORMS.values(), 1):
        ran = command(*words(name, {key: form(ref) for key, ref in refs.items()}, tmp_path, number), code=None)
        assert (ran.code, set(ran.codes) - BY_PLACE) == (here.code, set(here.codes) - BY_PLACE), ran.findings
        assert weights(tmp_path / f"out{number}") == weights(tmp_path / "out0")
    _offline(hub, command, tmp_path, monkeypatch, name, refs)


def _offline(
    hub: HubServer,
    command: Command,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    refs: dict[str, str],
) -> None:
    """An empty cache is an error that says so; a whole copy in it is as good as the network, and nothing is asked."""
    for number, cached in ((8, False), (9, True)):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(base / f"cache{number}"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        ranges.ranges_of.cache_clear()
        for ref in refs.values() if cached else ():
            snapshot_download(ref)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        before = len(hub.state.seen)
        ran = command(*words(name, dict(refs), base, number), code=None)
        assert len(hub.state.seen) == before, "offline means offline"
        if cached and name not in ASKS_THE_HUB:
            assert weights(base / f"out{number}") == weights(base / "out0") and ran.code in (0, 1)
        else:
            assert (ran.code, set(ran.codes)) == (3, {"hub-unreachable"}), ran.findings
            assert not (base / f"out{number}").exists()
    shutil.rmtree(base / "cache9")
