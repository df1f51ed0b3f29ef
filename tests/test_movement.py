"""`compare` on two steps of a training: how far each tensor moved, by layer and expert, and what stood still."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from ckpt_tools.cli import heat_map
from ckpt_tools.cli.heat_map import maps
from ckpt_tools.compare import compare, places
from ckpt_tools.model import open_model, rows_of
from tests.checkpoints import Tensors, changed, hf_tensors
from tests.conftest import Command, Tiny

MTP_COPY = "model.layers.2.embed_tokens.weight"  # of the main embedding


def trained(tiny: Tiny, family: str = "deepseek_v3") -> tuple[Path, Path, Tensors, Tensors]:
    """A model and a later step of it: layer 1 and its experts move, expert 3 the most; head, layer 0 and MTP stand still."""
    one, two = tiny(family, experts=4, dense=1), tiny(family, experts=4, dense=1)
    torch.manual_seed(0)
    with changed(two / "model.safetensors") as tensors:
        for name, tensor in list(tensors.items()):
            if name.startswith("model.layers.1.") or name.endswith("embed_tokens.weight"):
                far = 0.5 if ".experts.3." in name else 0.01
                tensor += (torch.randn(tensor.shape) * far).to(tensor.dtype)
            if MTP_COPY in tensors:
                tensors[MTP_COPY] = tensors["model.embed_tokens.weight"].clone()
    return one, two, hf_tensors(one), hf_tensors(two)


def test_relative_change_is_the_ratio_of_norms(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    one, two, before, after = trained(tiny)
    command("convert", two, tmp_path / "td")
    ran = command("compare", one, tmp_path / "td", "--json", code=1)
    found = {difference["name"]: difference["relative"] for difference in ran.result["differences"]}
    wanted = {
        name: float((before[name].double() - after[name].double()).norm() / before[name].double().norm())
        for name in found
    }
    assert found == pytest.approx(wanted, rel=1e-9)
    assert len(found) > 10
    equal = ran.result["body_tensors"] - len(found)
    every = sorted([0.0] * equal + list(wanted.values()))
    assert ran.result["body_change"] == pytest.approx((every[(len(every) - 1) // 2] + every[len(every) // 2]) / 2)
    assert ran.result["mtp_change"] == 0.0


def test_equal_parts_of_a_tensor_count_in_its_norm(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are equal are not decoded, and their norm belongs to the whole all the same."""
    monkeypatch.setattr("ckpt_tools.engine.view.TILE", 64)
    one, two = tiny("llama"), tiny("llama")
    name = "model.embed_tokens.weight"
    with changed(two / "model.safetensors") as tensors:
        tensors[name][7] += 1
    before, after = (hf_tensors(folder)[name].double() for folder in (one, two))
    (difference,) = compare(open_model(one), open_model(two)).differences
    assert difference.relative == pytest.approx(float((before - after).norm() / before.norm()))


def test_what_stood_still_is_named(tiny: Tiny, command: Command) -> None:
    one, two, *_ = trained(tiny)
    ran = command("compare", one, two, "--json", code=1)
    assert ran.result["frozen"] == ["lm_head.weight", "model.norm.weight", "MTP layer 0"]
    assert ran.codes == ["mtp-unmoved"]
    assert "did not move" in command("compare", one, two, code=1).out
    assert command("compare", one, one, "--json").result["frozen"] == []


def test_places_are_those_that_names_spell(tiny: Tiny) -> None:
    model = open_model(tiny("deepseek_v3", experts=4, dense=1))
    found = places(rows_of(model))
    assert found["model.layers.1.mlp.experts.3.up_proj.weight"] == {"layer": 1, "expert": 3}
    assert found["model.layers.0.mlp.up_proj.weight"] == {"layer": 0}
    assert found["model.layers.2.eh_proj.weight"] == {"mtp": 0}
    assert found["lm_head.weight"] == {}
    packed = places(rows_of(open_model(tiny("qwen3_5_moe", experts=4))))
    (name,) = [name for name in packed if name.endswith("layers.0.mlp.experts.down_proj")]
    assert packed[name] == {"layer": 0}


def test_the_map_shows_the_expert_that_moved_most(tiny: Tiny) -> None:
    one, two, before, after = trained(tiny)
    model = open_model(one)
    layers, experts = maps(compare(model, open_model(two)), places(rows_of(model)))
    assert layers.rows == ["outside", "layer 0", "layer 1", "MTP 0"]
    assert experts.columns == ["0", "1", "2", "3"]
    assert max(experts.cells, key=lambda cell: experts.cells[cell]) == ("layer 1", "3")
    names = [f"model.layers.1.mlp.experts.3.{part}_proj.weight" for part in ("gate", "up", "down")]
    ratios = [float((before[n].double() - after[n].double()).norm() / before[n].double().norm()) for n in names]
    assert experts.cells["layer 1", "3"] == pytest.approx((sum(r**2 for r in ratios) / 3) ** 0.5)
    assert {value for (row, _), value in layers.cells.items() if row in ("layer 0", "MTP 0")} == {0.0}
    assert layers.cells["outside", "lm_head"] == 0.0 < layers.cells["outside", "model.embed_tokens"]


def test_html_has_a_cell_per_number_and_nothing_from_outside(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    one, two, *_ = trained(tiny)
    command("compare", one, two, "--heat-map", tmp_path / "map.html", code=1)
    text = (tmp_path / "map.html").read_text()
    made = maps(compare(open_model(one), open_model(two)), places(rows_of(open_model(one))))
    assert text.count("<td style=") == sum(1 for each in made for value in each.cells.values() if value)
    assert text.count("<td class=zero>") == sum(1 for each in made for value in each.cells.values() if not value)
    assert not re.search(r"<script|src=|href=|https?:", text)


def test_other_forms(tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny("llama")
    assert command("compare", one, one, "--heat-map", tmp_path / "m.pdf", "--json", code=2).codes == ["heat-map-form"]
    monkeypatch.setitem(sys.modules, "matplotlib.colors", None)
    assert "ckpt-tools[plot]" in command("compare", one, one, "--heat-map", tmp_path / "m.png", code=1).err


def test_png(tiny: Tiny, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    one, two, *_ = trained(tiny)
    model = open_model(one)
    heat_map.write(tmp_path / "map.png", maps(compare(model, open_model(two)), places(rows_of(model))), "steps")
    heat_map.write(tmp_path / "same.png", maps(compare(model, model), places(rows_of(model))), "steps")
    for name in ("map.png", "same.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
