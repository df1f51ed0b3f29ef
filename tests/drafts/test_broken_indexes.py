"""Heads and indexes that do not agree: what the files hold counts, and a head fills what an index promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ckpt_tools.drafts.manifest import read_manifest
from tests.checkpoints import INDEX, Tensors, assert_same, changed, hf_tensors, holders, tree, write_index
from tests.conftest import Command, Tiny

PREFIX = {"mimo": "model.mtp_layers.", "qwen3_next": "mtp.", "glm4_moe": "model.layers.2."}
COPIES = ("model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight")


def head_of(tensors: Tensors, family: str) -> Tensors:
    return {n: t for n, t in tensors.items() if n.startswith(PREFIX[family]) and n not in COPIES}


def haunted(folder: Path, names: list[str]) -> None:
    """The index keeps names that no file holds any more."""
    for file in set(holders(folder).values()):
        with changed(folder / file) as tensors:
            for name in names:
                tensors.pop(name, None)


@pytest.mark.parametrize("family", PREFIX)
@pytest.mark.parametrize("count", [3, None])
def test_a_reference_fills_what_the_index_promises(
    family: str, count: int | None, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Trained without its head, saved with an index that names it (redai-studio/Relax#148)."""
    model, reference = tiny(family, shards=2), tiny(family, shards=3)
    every, head = hf_tensors(model), head_of(hf_tensors(model), family)
    haunted(model, sorted(head)[:count])
    before = tree(model)
    out = tmp_path / "out"
    ran = command("merge-draft", model, reference, out, "--json")
    filled = ran.finding("index-ghost-filled")
    assert filled["severity"] == "warning"
    assert filled["what"].startswith(f"{len(sorted(head)[:count])} tensors")
    assert_same(hf_tensors(out), every)
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"] == holders(out)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in every.values())
    made = read_manifest(out).provenance
    assert (made.source, made.tensors, made.trained) == (reference.name, len(head), False)
    assert {finding["severity"] for finding in command("inspect", out, "--json").findings} <= {"note"}
    assert tree(model) == before


def test_a_lost_tensor_of_the_body_is_not_filled(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    model, reference = tiny("mimo", shards=2), tiny("mimo")
    lost = ["model.layers.0.mlp.up_proj.weight", "model.mtp_layers.0.input_proj.weight"]
    haunted(model, lost)
    ran = command("merge-draft", model, reference, tmp_path / "out", "--json", code=1)
    assert ran.codes == ["index-ghost", "index-ghost"]
    assert not (tmp_path / "out").exists()


def test_other_faults_beside_ghosts_are_still_errors(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    model, reference = tiny("mimo", shards=2), tiny("mimo")
    haunted(model, ["model.mtp_layers.0.input_proj.weight"])
    save_file({"model.norm.weight": hf_tensors(model)["model.norm.weight"]}, model / "copy.safetensors")
    ran = command("merge-draft", model, reference, tmp_path / "out", "--json", code=1)
    assert "tensor-twice" in ran.codes


@pytest.mark.parametrize("family", PREFIX)
@pytest.mark.parametrize("fault", ["omitted", "another file", "one of them"])
def test_a_head_is_found_whatever_the_index_says(
    family: str, fault: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """An index that was rewritten by a pattern of file names forgot it (osaurus-ai/vmlx-swift#388)."""
    model = tiny(family)
    every = hf_tensors(model)
    head = head_of(every, family)
    body = sorted(every.keys() - head.keys())
    (model / "model.safetensors").unlink()
    save_file({name: every[name] for name in body[::2]}, model / "model-00001-of-00002.safetensors")
    save_file({name: every[name] for name in body[1::2]}, model / "model-00002-of-00002.safetensors")
    save_file(head, model / "mtp.safetensors")
    first = sorted(head)[0]
    weight_map = holders(model)
    for name in head if fault == "omitted" else [first] if fault == "one of them" else ():
        del weight_map[name]
    if fault == "another file":
        weight_map |= dict.fromkeys(head, "model-00001-of-00002.safetensors")
    write_index(model, weight_map)
    ran = command("extract-draft", model, tmp_path / "head", "--json")
    code = "index-wrong-shard" if fault == "another file" else "index-omits"
    assert {f["severity"] for f in ran.findings if f["code"] == code} == {"warning"}
    assert_same(hf_tensors(tmp_path / "head"), head)
    command("inspect", model, "--write-index")
    again = command("extract-draft", model, tmp_path / "again", "--json")
    assert code not in again.codes
    assert_same(hf_tensors(tmp_path / "again"), head)


def test_a_head_that_is_gone_is_not_found(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    model = tiny("mimo", shards=2)
    haunted(model, ["model.mtp_layers.0.input_proj.weight"])
    assert "index-ghost" in command("extract-draft", model, tmp_path / "head", "--json", code=1).codes
    assert not (tmp_path / "head").exists()
