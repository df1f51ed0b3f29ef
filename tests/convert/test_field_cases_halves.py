"""The two halves of the projection that joins embedding and hidden state: a public report, as a whole kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import assert_same, changed, hf_tensors, megatron_tensors, write_torch_dist
from tests.conftest import Command, Tiny

from .expected_moe import under_one_name
from .mtp_names import HEADS

JOINT = "mtp.layers.0.eh_proj.weight"


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
