"""G1: the draft vocabulary lies in a side file only; the export carries it in its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import changed
from tests.conftest import Command
from tests.drafts.heads import ASSETS, IDS, asset, eagle, eagle3, target, target_of

OFFSETS = torch.tensor([0, 1, 1, 4, 4, 10, 14, 24])  # IDS minus 0..7
MASK = torch.zeros(32, dtype=torch.bool).index_fill(0, torch.tensor(IDS), True)


def bare(folder: Path) -> Path:
    """A head of 8 of 32 ids without its maps."""
    head = eagle3(folder)
    with changed(head / "model.safetensors") as tensors:
        del tensors["d2t"], tensors["t2d"]
    return head


FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a list in JSON": ("ids.json", lambda path: path.write_text(json.dumps(IDS))),
    "a list by torch": ("ids.pt", lambda path: torch.save(IDS, path)),
    "a tensor by torch": ("ids.pt", lambda path: torch.save(torch.tensor(IDS), path)),
    "SpecForge's mapping": ("map.pt", lambda path: torch.save({"d2t": OFFSETS, "t2d": MASK}, path)),
    "offsets in safetensors": ("map.safetensors", lambda path: save_file({"d2t": OFFSETS}, path)),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("to", ["sglang", "speculators"])
def test_the_map_travels_with_the_weights(kind: str, to: str, command: Command, tmp_path: Path) -> None:
    model, head, (name, save) = target(tmp_path / "target"), bare(tmp_path / "head"), FILES[kind]
    save(tmp_path / name)
    words = ("export-draft", head, tmp_path / "out", "--target", model, "--format", to)
    assert "d2t-missing" in command(*words, "--json", code=1).codes and not (tmp_path / "out").exists()
    ran = command(*words, "--vocab-map", tmp_path / name, "--json")
    assert set(ran.result["made"]) >= {"d2t", "t2d"}
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["d2t"], OFFSETS) and torch.equal(written["t2d"], MASK)


def test_the_trained_head_gets_its_own_map_back(command: Command, tmp_path: Path) -> None:
    before = load_file(ASSETS / "smollm2-eagle3" / "model.safetensors")
    head, model = asset("eagle3", tmp_path / "head"), target_of("eagle3", tmp_path / "target")
    with changed(head / "model.safetensors") as tensors:
        ids = tensors.pop("d2t") + torch.arange(len(before["d2t"]))
        del tensors["t2d"]
    (tmp_path / "ids.json").write_text(json.dumps(ids.tolist()))
    command("export-draft", head, tmp_path / "out", "--target", model, "--vocab-map", tmp_path / "ids.json", "--json")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(written[name], before[name]) for name in ("d2t", "t2d", "lm_head.weight"))


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([*IDS, 9], "d2t-length"),
        ([*IDS[:7], 40], "d2t-range"),
        ([*IDS[:7], 0], "d2t-duplicates"),
        ({"ids": IDS}, "token-map-unreadable"),
    ],
)
def test_a_map_of_another_head_is_refused(ids: Any, code: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    words = ("export-draft", bare(tmp_path / "head"), tmp_path / "out", "--target", target(tmp_path / "target"))
    ran = command(*words, "--vocab-map", tmp_path / "ids.json", "--json", code=3 if "unreadable" in code else 1)
    assert code in ran.codes and not (tmp_path / "out").exists()


def test_no_map_beside_a_map(command: Command, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    for head in (eagle3(tmp_path / "three"), eagle(tmp_path / "one")):
        words = ("export-draft", head, tmp_path / "out", "--target", target(tmp_path / "target"))
        assert command(*words, "--vocab-map", tmp_path / "ids.json", "--json", code=1).codes == ["vocab-map-not-needed"]
    with changed(bare(tmp_path / "half") / "model.safetensors") as tensors:
        tensors["t2d"] = ~MASK
    words = ("export-draft", tmp_path / "half", tmp_path / "out", "--target", target(tmp_path / "target"))
    assert "t2d-disagrees" in command(*words, "--vocab-map", tmp_path / "ids.json", "--json", code=1).codes


MAPS: dict[str, tuple[torch.Tensor, str]] = {
    "absolute ids": (torch.tensor(IDS), "d2t-absolute"),
    "far outside": (torch.tensor([5, 99990, *[0] * 6]), "d2t-range"),
    "negative": (OFFSETS - torch.tensor([1, *[0] * 7]), "d2t-range"),
    "twice": (OFFSETS * torch.tensor([1, 0, *[1] * 6]) - torch.tensor([0, 1, *[0] * 6]), "d2t-duplicates"),
    "int16": (OFFSETS.to(torch.int16), "d2t-dtype"),
    "float": (OFFSETS.float(), "d2t-dtype"),
}


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("to", ["sglang", "speculators"])
def test_a_map_that_cannot_be_is_refused(kind: str, to: str, command: Command, tmp_path: Path) -> None:
    """Before anything is made of it: t2d is made for speculators, where the head has none."""
    head, (offsets, code) = bare(tmp_path / "head"), MAPS[kind]
    with changed(head / "model.safetensors") as tensors:
        tensors["d2t"] = offsets
    words = ("export-draft", head, tmp_path / "out", "--target", target(tmp_path / "target"), "--format", to, "--json")
    assert code in command(*words, code=1).codes and not (tmp_path / "out").exists()
    if to == "sglang":  # it has no use for a t2d, so an offset that leads astray breaks nothing here
        command(*words, "--no-verify", code=1 if code == "d2t-dtype" else 0)


def test_a_mask_of_numbers_is_no_mask(command: Command, tmp_path: Path) -> None:
    head = eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        tensors["t2d"] = MASK.long()
    words = ("export-draft", head, "--target", target(tmp_path / "target"), "--json")
    assert command(*words, tmp_path / "out", "--format", "speculators", code=1).codes[-1:] == ["d2t-dtype"]
    command(*words, tmp_path / "out")


@pytest.mark.parametrize("name", ["map.safetensors", "ids.pt"])
@pytest.mark.parametrize("nbytes", [0, 20])
def test_a_map_that_ends_early_is_refused(name: str, nbytes: int, command: Command, tmp_path: Path) -> None:
    whole = tmp_path / name
    save_file({"d2t": OFFSETS}, whole) if name.endswith("safetensors") else torch.save(IDS, whole)
    whole.write_bytes(whole.read_bytes()[:nbytes])
    words = ("export-draft", bare(tmp_path / "head"), tmp_path / "out", "--target", target(tmp_path / "target"))
    ran = command(*words, "--vocab-map", whole, "--json", code=3)
    assert ran.codes == ["token-map-unreadable"] and not (tmp_path / "out").exists()
