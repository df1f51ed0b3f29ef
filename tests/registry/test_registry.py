"""The registry: only heads that fit get in, everything is checked again, the heads of a target are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.manifest import hash_file, hash_files
from ckpt_tools.errors import UsageProblem
from ckpt_tools.registry import heads
from ckpt_tools.registry.store import file_of
from tests.checkpoints import changed, changed_config
from tests.command import Ran
from tests.conftest import Command, Tiny
from tests.drafts.heads import asset, eagle, eagle3, target, target_of, write_tokenizer

Run = Callable[..., Ran]


@pytest.fixture
def registry(command: Command, tmp_path: Path) -> Run:
    def call(verb: str, *words: object, code: int = 0) -> Ran:
        return command("registry", verb, *words, "--registry", tmp_path / "registry", "--json", code=code)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = target(tmp_path / "target", weights=True)
    write_tokenizer(made, 32)
    return made


def names(ran: Ran) -> list[str]:
    return [head["entry"]["name"] for head in ran.result["heads"]]


def test_add_records_what_a_head_is(registry: Run, model: Path, tmp_path: Path) -> None:
    head = eagle3(tmp_path / "head")
    ran = registry("add", head, "--target", model, "--name", "one", "--accept-length", 2.5, "--steps", 3)
    (entry,) = [listed["entry"] for listed in ran.result["heads"]]
    identity = entry["target"]["identity"]
    assert identity["arch_hash"].startswith("arch-1:") and identity["tokenizer_hash"].startswith("tokens-1:")
    assert identity["weights_hash"].startswith("weights-sampled-1:") and identity["arch"]["hidden_size"] == 8
    assert entry["kind"] == "eagle3" and entry["format"] == "sglang" and entry["verified"]["server"] == "sglang"
    assert entry["files"].keys() == {"config.json", "model.safetensors"}
    for name, stated in entry["files"].items():
        assert stated == hash_file(head / name).model_dump()
    assert entry["measured"] == {"accept_length": 2.5, "steps": 3}
    assert entry["provenance"]["source"] == "head" and entry["target"]["ref"] == ""
    assert registry("show", "one").result["heads"] == ran.result["heads"] == registry("list").result["heads"]


def test_a_head_that_does_not_fit_is_not_added(registry: Run, model: Path, tmp_path: Path) -> None:
    ran = registry("add", eagle(tmp_path / "head", hidden_size=6), "--target", model, "--name", "bad", code=1)
    assert "hidden-size" in ran.codes
    assert registry("show", "bad", code=3).codes == ["registry-not-found"], "nothing was made"


def test_real_heads(registry: Run, tmp_path: Path) -> None:
    """Of the three real heads, two are of one target and one of its MiMo form."""
    for kind in ("eagle", "eagle3", "mtp"):
        made = target_of(kind, tmp_path / f"target-{kind}")
        registry("add", asset(kind, tmp_path / kind), "--target", made, "--name", f"smollm2-{kind}")
    assert names(registry("resolve", tmp_path / "target-eagle")) == ["smollm2-eagle", "smollm2-eagle3"]
    assert names(registry("resolve", tmp_path / "target-mtp")) == ["smollm2-mtp"]
    assert registry("check").codes == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "-x", "a b", "x" * 200])
def test_names_stay_in_the_folder(name: str) -> None:
    with pytest.raises(UsageProblem, match="name-invalid"):
        file_of(name)


def test_a_name_is_taken_once(registry: Run, model: Path, tmp_path: Path) -> None:
    first, second = eagle3(tmp_path / "a"), eagle(tmp_path / "b")
    registry("add", first, "--target", model, "--name", "x")
    assert registry("add", second, "--target", model, "--name", "x", code=5).codes == ["name-taken"]
    assert registry("show", "x").result["heads"][0]["entry"]["kind"] == "eagle3"
    registry("add", second, "--target", model, "--name", "x", "--overwrite")
    assert registry("show", "x").result["heads"][0]["entry"]["kind"] == "eagle"


def test_a_name_is_checked_before_the_head(registry: Run, model: Path, tmp_path: Path) -> None:
    registry("add", eagle3(tmp_path / "a"), "--target", model, "--name", "x")
    bad = eagle(tmp_path / "b", hidden_size=6)
    assert registry("add", bad, "--target", model, "--name", "x", code=5).codes == ["name-taken"]
    assert registry("add", bad, "--target", model, "--name", "a/b", code=2).codes == ["name-invalid"]


def test_remove_forgets_the_entry_only(registry: Run, model: Path, tmp_path: Path) -> None:
    head = eagle3(tmp_path / "head")
    registry("add", head, "--target", model, "--name", "x")
    registry("remove", "x")
    assert names(registry("list")) == [] and (head / "model.safetensors").is_file()
    registry("remove", "x", code=3)


# --- check repeats everything


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


CHANGES: dict[str, tuple[Callable[[Path, Path], Any], str, int]] = {
    "nothing": (lambda head, model: None, "", 0),
    "a bit of the weights": (lambda head, model: flip(head / "model.safetensors"), "file-changed", 1),
    "a file gone": (lambda head, model: (head / "config.json").unlink(), "file-missing", 1),
    "the head gone": (lambda head, model: shutil.rmtree(head), "ref-not-found", 3),
    "a file more": (lambda head, model: (head / "x.txt").write_text("x"), "file-unexpected", 0),
    "another tokenizer": (lambda head, model: write_tokenizer(model, 31), "target-changed", 1),
    "the target gone": (lambda head, model: shutil.rmtree(model), "ref-not-found", 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_check(registry: Run, model: Path, tmp_path: Path, name: str) -> None:
    change, code, status = CHANGES[name]
    head = eagle3(tmp_path / "head")
    registry("add", head, "--target", model, "--name", "one")
    change(head, model)
    ran = registry("check", "one", code=min(status, 1))
    assert ran.codes == registry("check", code=min(status, 1)).codes
    assert (code in ran.codes) if code else ran.codes == []
    assert all(finding["where"].startswith("one: ") for finding in ran.findings)


def test_check_sees_a_moved_and_another_target(registry: Run, model: Path, tmp_path: Path) -> None:
    registry("add", eagle3(tmp_path / "head"), "--target", model, "--name", "one")
    with changed(model / "model.safetensors") as tensors:
        tensors["model.norm.weight"] += 1
    assert registry("check").finding("target-weights-changed")["severity"] == "warning"
    with changed_config(model) as config:
        config["rope_theta"] = 5e5
    assert registry("check", code=1).finding("target-changed")["expected"] == "10000"


def test_one_unreadable_entry_hides_no_other(registry: Run, model: Path, tmp_path: Path) -> None:
    registry("add", eagle3(tmp_path / "head"), "--target", model, "--name", "one")
    folder = tmp_path / "registry"
    (folder / "bad.json").write_text("{")
    entry = json.loads((folder / "one.json").read_text())
    (folder / "more.json").write_text(json.dumps({**entry, "name": "more", "surprise": 1}))
    (folder / "renamed.json").write_text(json.dumps(entry))
    (folder / "later.json").write_text(json.dumps({**entry, "name": "later", "version": 9}))
    ran = registry("list", code=1)
    assert names(ran) == ["one"] and ran.codes == ["entry-unreadable"] * 4


def test_one_unreadable_head_hides_no_other(
    registry: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        registry("add", eagle3(tmp_path / name), "--target", model, "--name", name)
    (tmp_path / "two" / "config.json").write_text("{}")

    def refusing(draft: Path) -> Any:
        if draft.name == "one":
            raise PermissionError(13, "Permission denied", str(draft / "config.json"))
        return hash_files(draft)

    monkeypatch.setattr(heads, "hash_files", refusing)
    ran = registry("check", code=1)
    assert ran.finding("io")["where"] == f"one: {tmp_path / 'one' / 'config.json'}"
    assert ran.finding("file-changed")["where"].startswith("two: ")


# --- resolve


def test_resolve_ranks(registry: Run, model: Path, tmp_path: Path) -> None:
    """The best measured first, those that were never measured after them, heads of other weights at the end."""
    head = eagle3(tmp_path / "head")
    moved = target(tmp_path / "moved", weights=True)
    write_tokenizer(moved, 32)
    with changed(moved / "model.safetensors") as tensors:
        tensors["model.norm.weight"] += 1
    other = target(tmp_path / "other", weights=True, intermediate_size=24)
    write_tokenizer(other, 32)
    tokens = target(tmp_path / "tokens", weights=True)
    write_tokenizer(tokens, 32, t5="other")
    for name, made, length in (
        ("b-slow", model, 1.5),
        ("c-fast", model, 3.25),
        ("a-unknown", model, None),
        ("d-moved", moved, 9),
        ("e-other", other, 9),
        ("f-tokens", tokens, 9),
    ):
        words = ("--accept-length", length) if length else ()
        registry("add", head, "--target", made, "--name", name, *words)
    ran = registry("resolve", model)
    assert names(ran) == ["c-fast", "b-slow", "a-unknown", "d-moved"]
    assert [head["weights"] for head in ran.result["heads"]] == ["equal", "equal", "equal", "moved"]


def test_unknown_weights_rank_between(registry: Run, model: Path, tmp_path: Path) -> None:
    head = eagle3(tmp_path / "head")
    for name, length in (("equal", 2), ("unknown", 3), ("moved", 4)):
        registry("add", head, "--target", model, "--name", name, "--accept-length", length)
    for name, value in (("unknown", None), ("moved", "weights-sampled-1:" + "0" * 64)):
        path = tmp_path / "registry" / f"{name}.json"
        entry = json.loads(path.read_text())
        entry["target"]["identity"]["weights_hash"] = value
        path.write_text(json.dumps(entry))
    assert [listed["weights"] for listed in registry("resolve", model).result["heads"]] == ["equal", "unknown", "moved"]


def test_resolve_a_conversion(registry: Run, command: Command, shared_tiny: Tiny, tmp_path: Path) -> None:
    """The torch-dist form of a target is the same target."""
    folder = shared_tiny("mimo")
    registry("add", folder, "--target", folder, "--name", "native")
    command("convert", folder, tmp_path / "td")
    ran = registry("resolve", tmp_path / "td")
    assert names(ran) == ["native"] and ran.result["heads"][0]["weights"] == "equal"
