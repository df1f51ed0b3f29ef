"""MTP layers of every naming: behind the decoder layers, under `mtp.`, under a prefix. Public reports, each as a whole kind."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.families import family_of
from ckpt_tools.mapping.rules import Table
from ckpt_tools.model import Model
from tests.checkpoints import (
    INDEX,
    Tensors,
    assert_same,
    changed,
    changed_config,
    config_of,
    hf_tensors,
    holders,
    megatron_tensors,
    write_index,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

from .expected_moe import under_one_name
from .refusal import check_refusal

# How the releases call the parts of an MTP layer, written down apart from the tables: prefix, joint projection, count field.
NEXTN, MTP, OWN = "model.layers.{n}.", "mtp.", "model.mtp_layers."
HEADS: dict[str, tuple[str, str, str]] = {
    "deepseek_v3": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm4_moe": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm4_moe_lite": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm_moe_dsa": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "qwen3_next": (MTP, "mtp.fc.weight", "num_nextn_predict_layers"),
    "qwen3_5_text": (MTP, "mtp.fc.weight", "mtp_num_hidden_layers"),
    "qwen3_5_moe_text": (MTP, "mtp.fc.weight", "mtp_num_hidden_layers"),
    "mimo": (OWN, "model.mtp_layers.0.input_proj.weight", "num_nextn_predict_layers"),
}
UNDECLARED = ("qwen3_next",)  # no field of the release counts its layer
JOINT = "mtp.layers.0.eh_proj.weight"


def prefix_of(family: str, layers: int = 2) -> str:
    return HEADS[family][0].format(n=layers)


def body_of(tensors: Tensors, family: str, layers: int = 2) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix_of(family, layers))}


def cut_in_three(folder: Path, family: str) -> None:
    """Embedding and first layer; second layer and half of the head; the rest of the head, norm and lm_head."""
    every = hf_tensors(folder)
    head = [name for name in every if name.startswith(prefix_of(family))]
    last = ["lm_head.weight", "model.norm.weight"]
    first = [n for n in every if n.startswith("model.layers.0.") or ("embed_tokens" in n and n not in head)]
    second = [n for n in every if n not in (*first, *head, *last)] + head[::2]
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    for number, names in enumerate((first, second, head[1::2] + last), 1):
        file = folder / f"model-{number:05d}-of-00003.safetensors"
        save_file({name: every[name] for name in names}, file, metadata={"format": "pt"})
    write_index(folder, holders(folder))


@pytest.mark.parametrize("family", HEADS)
def test_a_shard_is_not_lost_with_the_head_in_it(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Layers of the head lie beside the final norm and the lm_head (NVIDIA-NeMo/Megatron-Bridge#4188, AReaL#1403)."""
    source = tiny(family)
    cut_in_three(source, family)
    body = body_of(hf_tensors(source), family)
    for name, first, second in (("early", ["--mtp", "drop"], []), ("late", [], ["--mtp", "drop"])):
        command("convert", source, tmp_path / name, *first)
        command("convert", tmp_path / name, tmp_path / f"hf-{name}", *second, "--max-shard-size", "30KB")
        found = tmp_path / f"hf-{name}"
        assert_same(hf_tensors(found), body)
        assert "lm_head.weight" in body and "model.norm.weight" in body
        field = HEADS[family][2]
        assert config_of(found).get(field, 0) == 0
        assert command("inspect", found, "--json").result["mtp_found"] == 0


@pytest.mark.parametrize("layers", [3, 63])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_layer_behind_the_last_is_the_head_whatever_its_number(
    family: str, layers: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """A constant 61 keeps the head of one model as a decoder layer and takes a layer from another (ml-explore/mlx-lm#1524)."""
    sizes: dict[str, Any] = {"hidden": 8, "heads": 2, "kv_heads": 1, "ffn": 8, "vocab": 16, "experts": 2}
    source = shared_tiny(family, layers=layers, **sizes)
    original = hf_tensors(source)
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), original)
    stored = megatron_tensors(tmp_path / "td")
    output = "self_attention.linear_proj.weight"
    for layer in range(layers):
        expected = original[f"model.layers.{layer}.self_attn.o_proj.weight"]
        assert torch.equal(stored[f"decoder.layers.{layer}.{output}"], expected)
    head = original[f"model.layers.{layers}.self_attn.o_proj.weight"]
    assert torch.equal(stored[f"mtp.layers.0.transformer_layer.{output}"], head)
    assert f"decoder.layers.{layers}.{output}" not in stored


@pytest.mark.parametrize("family", [family for family in HEADS if family not in UNDECLARED])
@pytest.mark.parametrize("value", [0, None, "absent"])
def test_a_head_that_the_config_does_not_count(
    family: str, value: object, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """The model is sound without it; nobody takes the layer for one of the decoder (vllm-project/vllm#34888)."""
    source, (_, _, field) = tiny(family), HEADS[family]
    with changed_config(source) as config:
        config[field] = value
        if value == "absent":
            del config[field]
    found = command("inspect", source, "--json")
    assert found.result["dims"]["num_hidden_layers"] == 2
    assert (found.finding("mtp-undeclared")["severity"], found.finding("mtp-undeclared")["actual"]) == (
        "warning",
        "0 declared, 1 found",
    )
    check_refusal(command("convert", source, tmp_path / "td", "--json", code=1), "mtp-count", tmp_path / "td")
    command("convert", source, tmp_path / "bare", "--mtp", "drop")
    command("convert", tmp_path / "bare", tmp_path / "bare-hf")
    assert_same(hf_tensors(tmp_path / "bare-hf"), body_of(hf_tensors(source), family))
    command("convert", source, tmp_path / "td", "--mtp", 1)
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
    assert config_of(tmp_path / "hf")[field] == 1
    assert "mtp-undeclared" in command("extract-draft", source, tmp_path / "head", "--json", code=1).codes
    command("extract-draft", source, tmp_path / "head", "--mtp-layers", 1)


@pytest.mark.parametrize("family", HEADS)
def test_a_name_of_the_head_without_a_place(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """One name more inside a layer that is known (THUDM/slime#1496)."""
    source, stranger = tiny(family), prefix_of(family)
    stranger += "layers.0.mystery.weight" if stranger == MTP else "mystery.weight" if "{" in stranger else "0.mystery"
    with changed(source / "model.safetensors") as tensors:
        tensors[stranger] = torch.ones(3)
    ran = command("convert", source, tmp_path / "td", "--json", code=1)
    assert ran.finding("tensors-unmapped")["actual"] == stranger
    assert not (tmp_path / "td").exists()


@pytest.mark.parametrize("family", ["mimo", "qwen3_next", "deepseek_v3"])
@pytest.mark.parametrize("direction", ["to torch-dist", "to hf"])
def test_a_table_that_lacks_a_pattern_names_every_tensor(
    family: str, direction: str, shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a warning per parameter, and not the first one alone (NVIDIA-NeMo/Megatron-Bridge#3348, #3349)."""
    source = shared_tiny(family, mtp=1)
    stranger = "mtp.layers.0.transformer_layer.self_attention.linear_proj.weight"
    if direction == "to hf":
        command("convert", source, tmp_path / "td")
        source = tmp_path / "td"
    else:
        stranger = f"{prefix_of(family)}{'layers.0.' if family == 'qwen3_next' else '0.' if family == 'mimo' else ''}"
        stranger += "self_attn.o_proj.weight"
    whole = Model.table_with

    def lacking(self: Model, *words: Any, **named: Any) -> Table:
        table = whole(self, *words, **named)
        kept = [r for r in table.rules if not (r.hf[0].endswith("o_proj.weight") and r.axes[0].name == "mtp")]
        assert len(kept) == len(table.rules) - 1
        return replace(table, rules=tuple(kept))

    monkeypatch.setattr(Model, "table_with", lacking)
    ran = command("convert", source, tmp_path / "out", "--json", code=1)
    check_refusal(ran, "tensors-unmapped", tmp_path / "out")
    assert ran.finding("tensors-unmapped")["actual"] == stranger


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe", "glm4"])
def test_mtp_layers_of_a_family_whose_releases_have_none(
    family: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """No name in Hugging Face exists for them: all are named, none is invented, and they can be left out (NeMo#3348)."""
    source = shared_tiny(family, extra_config={"rope_scaling": None} if family == "llama" else None)
    command("convert", source, tmp_path / "bare")
    command("convert", shared_tiny("glm4_moe"), tmp_path / "other")
    other = under_one_name(megatron_tensors(tmp_path / "other"), 0)
    head = {name: t for name, t in other.items() if name.startswith("mtp.")}
    write_torch_dist(tmp_path / "td", under_one_name({**megatron_tensors(tmp_path / "bare"), **head}, 0))
    words = ["convert", tmp_path / "td", tmp_path / "hf", "--hf-config", source, "--json"]
    refused = command(*words, code=1)
    check_refusal(refused, "mtp-unmapped", tmp_path / "hf")
    found = refused.finding("mtp-unmapped")
    assert family in found["what"] and found["what"].startswith(f"{len(head)} tensors")
    assert all(name in found["actual"] for name in head)
    assert "mtp-unmapped" in command("inspect", tmp_path / "td", "--hf-config", source, "--json", code=1).codes
    dropped = command(*words, "--mtp", "drop").finding("mtp-unmapped")
    assert (dropped["severity"], dropped["actual"]) == ("warning", found["actual"])
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


@pytest.mark.parametrize("family", HEADS)
def test_the_halves_of_the_joint_projection(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Embedding first in Megatron and in every release but MiMo's (Megatron-LM#1588, sglang#6423, slime#1503)."""
    source, name = tiny(family), HEADS[family][1].format(n=2)
    with changed(source / "model.safetensors") as tensors:
        tensors[name][:, :32], tensors[name][:, 32:] = 1.0, 2.0
    command("convert", source, tmp_path / "td")
    joint = megatron_tensors(tmp_path / "td")[JOINT]
    halves = (2.0, 1.0) if family == "mimo" else (1.0, 2.0)
    for half, value in zip(joint.chunk(2, dim=1), halves, strict=True):
        assert torch.equal(half, torch.full((32, 32), value, dtype=joint.dtype))
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


@pytest.mark.parametrize("family", HEADS)
def test_both_orders_give_one_product(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A round trip proves nothing: two exchanges cancel. What each side computes from one input does."""
    source, name = tiny(family, dtype="float32"), HEADS[family][1].format(n=2)
    generator = torch.Generator().manual_seed(5)
    with changed(source / "model.safetensors") as tensors:
        tensors[name] = torch.randint(-4, 5, (32, 64), generator=generator).float()  # exact in any order of sums
    weight = hf_tensors(source)[name]
    command("convert", source, tmp_path / "td")
    embedding, hidden = torch.randint(-4, 5, (2, 32), generator=generator).float()
    read = [hidden, embedding] if family == "mimo" else [embedding, hidden]
    assert torch.equal(
        megatron_tensors(tmp_path / "td")[JOINT] @ torch.cat([embedding, hidden]), weight @ torch.cat(read)
    )
    assert not torch.equal(weight @ torch.cat(read), weight @ torch.cat(read[::-1]))


def test_exchanged_halves_are_remembered(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """What we wrote in slime's order comes back without being told again, in whichever command."""
    source = tiny("qwen3_next")
    command("convert", source, tmp_path / "td", "--mtp-halves", "swapped", "--gdn-layout", "slime")
    joint, own = megatron_tensors(tmp_path / "td")[JOINT], hf_tensors(source)["mtp.fc.weight"]
    assert torch.equal(joint, torch.cat([own[:, 32:], own[:, :32]], dim=1))
    ran = command("convert", tmp_path / "td", tmp_path / "hf", "--json")
    assert "eh-proj-order" not in ran.codes
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
    command("extract-draft", tmp_path / "td", tmp_path / "head")
    assert torch.equal(hf_tensors(tmp_path / "head")["mtp.fc.weight"], own)
    command("convert", tmp_path / "td", tmp_path / "straight", "--mtp-halves", "straight")
    assert torch.equal(hf_tensors(tmp_path / "straight")["mtp.fc.weight"], joint)


def test_halves_that_another_tool_may_have_exchanged(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3_next")
    command("convert", source, tmp_path / "td", "--mtp-halves", "swapped", "--gdn-layout", "slime")
    command("convert", source, tmp_path / "ours")
    theirs, ours = (under_one_name(megatron_tensors(tmp_path / name), 0) for name in ("td", "ours"))
    write_torch_dist(tmp_path / "theirs", theirs)
    spec = ["slime_plugins.models.qwen3_next", "get_qwen3_next_spec"]
    write_torch_dist(tmp_path / "by-spec", ours, spec=spec)
    write_torch_dist(tmp_path / "megatron", ours)
    for name, doubtful in (("theirs", True), ("by-spec", True), ("megatron", False)):
        words = ["convert", tmp_path / name, tmp_path / f"hf-{name}", "--hf-config", source, "--json"]
        ran = command(*words)
        assert ("eh-proj-order" in ran.codes) == doubtful
        if doubtful:
            assert ran.finding("eh-proj-order")["severity"] == "warning"
            assert "--mtp-halves swapped" in ran.finding("eh-proj-order")["expected"]
            assert "eh-proj-order" not in command(*words, "--overwrite", "--mtp-halves", "swapped").codes
    assert_same(hf_tensors(tmp_path / "hf-theirs"), hf_tensors(source))


def test_the_families_here_are_those_with_layers_of_their_own(shared_tiny: Tiny) -> None:
    from ckpt_tools.families.config import Fields

    for family, (_, _, field) in HEADS.items():
        assert family_of(Fields(config_of(shared_tiny(family)), "")).mtp_field == field


@pytest.mark.parametrize("torch_dist", [False, True])
@pytest.mark.parametrize("family", ["qwen3_5_text", "glm4_moe", "deepseek_v3"])
def test_a_config_that_claims_layers_which_a_library_dropped(
    family: str, torch_dist: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Load and save in transformers loses `mtp.*` and keeps the count (huggingface/transformers#46129, ms-swift#9802)."""
    source, saved = tiny(family), tmp_path / "saved"
    shutil.copytree(source, saved)
    save_file(body_of(hf_tensors(source), family), saved / "model.safetensors", metadata={"format": "pt"})
    if torch_dist:
        command("convert", saved, tmp_path / "td", "--mtp", "drop")
        found = command("inspect", tmp_path / "td", "--hf-config", saved, "--json", code=1)
    else:
        found = command("inspect", saved, "--json", code=1)
        (saved / INDEX).unlink(missing_ok=True)
    finding = found.finding("config-claims-mtp")
    assert finding["actual"] == "1 declared, 0 found"
    assert "put the head back" in finding["fix"] and "set the count" in finding["fix"]
    command("merge-draft", saved, source, tmp_path / "whole")
    assert_same(
        hf_tensors(tmp_path / "whole"),
        {
            name: t
            for name, t in hf_tensors(source).items()
            if not re.search(r"layers\.2\.(embed|shared_head\.head)", name)
        },
    )
    command("inspect", tmp_path / "whole")
