"""Right names, wrong values: order, fusion and layout. Public reports, each as a test of its whole kind.

A round trip proves nothing here, as two equal mistakes cancel: every test states the Megatron values themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import (
    assert_same,
    changed,
    changed_config,
    chunks_of,
    hf_tensors,
    megatron_tensors,
    tree,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

EH_PROJ = "mtp.layers.0.eh_proj.weight"
INPUT_PROJ = "model.mtp_layers.0.input_proj.weight"
QKV = "decoder.layers.self_attention.linear_qkv"
FC1 = "decoder.layers.mlp.linear_fc1.weight"


def test_the_halves_of_mimos_joint_projection_change_places(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """MiMo reads [hidden, embedding], Megatron [embedding, hidden] (NVIDIA/Megatron-LM#1588, sgl-project/sglang#6423)."""
    source = tiny("mimo", mtp=1, dtype="float32")
    with changed(source / "model.safetensors") as tensors:
        tensors[INPUT_PROJ][:, :32], tensors[INPUT_PROJ][:, 32:] = 1.0, 2.0
    command("convert", source, tmp_path / "td")
    joint = megatron_tensors(tmp_path / "td")[EH_PROJ]
    assert torch.equal(joint[:, :32], torch.full((32, 32), 2.0))
    assert torch.equal(joint[:, 32:], torch.full((32, 32), 1.0))


def test_both_sides_compute_the_same_joint_projection(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo", mtp=1, dtype="float32")
    generator = torch.Generator().manual_seed(5)
    with changed(source / "model.safetensors") as tensors:
        tensors[INPUT_PROJ] = torch.randint(-4, 5, (32, 64), generator=generator).float()  # exact in any order of sums
    command("convert", source, tmp_path / "td")
    embedding, hidden = torch.randint(-4, 5, (2, 32), generator=generator).float()
    ours = megatron_tensors(tmp_path / "td")[EH_PROJ] @ torch.cat([embedding, hidden])
    theirs = hf_tensors(source)[INPUT_PROJ] @ torch.cat([hidden, embedding])
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, hf_tensors(source)[INPUT_PROJ] @ torch.cat([embedding, hidden]))


@pytest.mark.parametrize(
    ("kv_heads", "rows"),
    [
        (2, [10, 10, 11, 11, 20, 20, 30, 30, 12, 12, 13, 13, 21, 21, 31, 31]),
        (4, [10, 10, 20, 20, 30, 30, 11, 11, 21, 21, 31, 31, 12, 12, 22, 22, 32, 32, 13, 13, 23, 23, 33, 33]),
        (1, [10, 10, 11, 11, 12, 12, 13, 13, 20, 20, 30, 30]),
    ],
)
def test_qkv_is_stacked_per_group(kv_heads: int, rows: list[int], tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Query heads of a group, its key head, its value head; weight and bias alike (NVIDIA-NeMo/RL#2802)."""
    source = tiny("qwen2", hidden=8, heads=4, kv_heads=kv_heads, ffn=16, vocab=32)
    heads = {"q": 4, "k": kv_heads, "v": kv_heads}
    with changed(source / "model.safetensors") as tensors:
        for number, (part, count) in enumerate(heads.items(), 1):
            values = torch.tensor([10.0 * number + head for head in range(count) for _ in range(2)])
            for layer in range(2):
                at = f"model.layers.{layer}.self_attn.{part}_proj"
                tensors[f"{at}.weight"][:] = values[:, None]
                tensors[f"{at}.bias"][:] = values
    command("convert", source, tmp_path / "td")
    found = megatron_tensors(tmp_path / "td")
    for layer in range(2):
        assert found[f"{QKV}.weight"][layer, :, 0].tolist() == rows
        assert found[f"{QKV}.weight"][layer, :, 7].tolist() == rows
        assert found[f"{QKV}.bias"][layer].tolist() == rows


@pytest.mark.parametrize("words", [["inspect"], ["megatron-args"], ["convert"]])
def test_key_value_heads_must_divide(words: list[str], tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("llama")
    with changed_config(source) as config:
        config["num_key_value_heads"] = 3
    target = [tmp_path / "td"] if words == ["convert"] else []
    finding = command(*words, source, *target, "--json", code=1).finding("heads-not-divisible")
    assert finding["actual"] == "4 and 3"
    assert not (tmp_path / "td").exists()


def test_nothing_depends_on_the_tensor_parallel_size(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Right at TP 1 and wrong at TP 2 (NVIDIA-NeMo/Megatron-Bridge#1690): the stored tensors know no ranks."""
    source = tiny("llama", vocab=1024)
    with changed(source / "model.safetensors") as tensors:
        for name, tensor in tensors.items():
            if "gate_proj" in name or "up_proj" in name:
                tensor[:] = 1.0 if "gate_proj" in name else 2.0
    for tp in (1, 2, 4):
        command("convert", source, tmp_path / f"tp{tp}", "--tp", tp)
    first = megatron_tensors(tmp_path / "tp1")
    for tp in (2, 4):
        assert_same(megatron_tensors(tmp_path / f"tp{tp}"), first)
    assert first[FC1][1, :, 0].tolist() == [1.0] * 48 + [2.0] * 48


def test_a_rank_reads_gate_and_up_from_chunks_of_their_own(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "td")
    assert chunks_of(tmp_path / "td", FC1) == [
        ((layer, start, 0), (1, 48, 32)) for layer in range(2) for start in (0, 48)
    ]


@pytest.mark.parametrize(("tp", "named"), [(3, "num_attention_heads 4"), (32, "intermediate_size 48"), (5, "num_key")])
def test_ranks_that_cannot_share_the_model(
    tp: int, named: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    finding = command("convert", shared_tiny("llama"), tmp_path / "td", "--tp", tp, "--json", code=2)
    assert named in finding.finding("tp-not-divisible")["actual"]
    assert not (tmp_path / "td").exists()


def test_norms_of_both_specs_are_read(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """One spec fuses a norm into the next linear layer, another keeps a module (NVIDIA-NeMo/Megatron-Bridge#1821)."""
    source = shared_tiny("mimo", mtp=1)
    for norms, name in (
        ("fused", "self_attention.linear_qkv.layer_norm_weight"),
        ("separate", "input_layernorm.weight"),
    ):
        command("convert", source, tmp_path / norms, "--norms", norms)
        stored = megatron_tensors(tmp_path / norms)
        for layer in ("decoder.layers", "mtp.layers.0.transformer_layer"):
            assert f"{layer}.{name}" in stored
        ran = command("inspect", tmp_path / norms, "--json")
        assert ran.result["variants"]["norms"] == norms
        shown = command("inspect", tmp_path / norms).out
        assert ["norms", norms] in [line.split() for line in shown.splitlines()]
        command("convert", tmp_path / norms, tmp_path / f"hf-{norms}")
    assert tree(tmp_path / "hf-fused") == tree(tmp_path / "hf-separate")


@pytest.mark.parametrize(
    ("written", "asked", "found"),
    [
        (["--norms", "separate"], ["--norms", "fused"], "separate"),
        (["--norms", "fused"], ["--norms", "separate"], "fused"),
        (["--mtp-name", "mtp_model_layer"], ["--mtp-name", "transformer_layer"], "mtp_model_layer"),
        (["--layout", "per-layer"], ["--layout", "stacked"], "per-layer"),
    ],
)
def test_asking_for_another_spec_than_is_stored(
    written: list[str], asked: list[str], found: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    command("convert", shared_tiny("mimo", mtp=1), tmp_path / "td", *written)
    finding = command("convert", tmp_path / "td", tmp_path / "hf", *asked, "--json", code=2).finding("variant-differs")
    assert finding["expected"] == asked[1]
    assert finding["actual"].startswith(f"{found}: ")
    assert not (tmp_path / "hf").exists()
    command("convert", tmp_path / "td", tmp_path / "hf", *written)


def test_norms_of_two_specs_in_one_checkpoint(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("llama")
    command("convert", source, tmp_path / "td", "--layout", "per-layer")
    old, new = "decoder.layers.1.mlp.linear_fc1.layer_norm_weight", "decoder.layers.1.pre_mlp_layernorm.weight"
    mixed = {new if name == old else name: t for name, t in megatron_tensors(tmp_path / "td").items()}
    write_torch_dist(tmp_path / "mixed", mixed)
    ran = command("convert", tmp_path / "mixed", tmp_path / "out", "--hf-config", source, "--json", code=1)
    assert new in ran.finding("norms-naming-mixed")["actual"]
    assert not (tmp_path / "out").exists()
