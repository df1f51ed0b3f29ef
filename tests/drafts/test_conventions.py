"""Heads whose producers mean the same by other numbers, names or storages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ckpt_tools.drafts.spec import open_draft
from tests.checkpoints import changed, changed_config, hf_tensors
from tests.conftest import Command, Tiny
from tests.drafts.conftest import Run
from tests.drafts.heads import eagle, eagle3, target

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def test_ids_of_either_convention_are_the_same_boundaries(verify: Run, command: Command, tmp_path: Path) -> None:
    """Outputs 1, 17, 32 of 36 layers are inputs 2, 18, 33 (sgl-project/sglang#25454, vllm-project/vllm#43671)."""
    model = target(tmp_path / "target", num_hidden_layers=36)
    outputs = eagle3(tmp_path / "outputs", eagle_config={LAYER_IDS: [1, 17, 32]})
    words = ("--target", model, "--target-name", "org/model")
    command("export-draft", outputs, tmp_path / "inputs", *words, "--format", "speculators")
    inputs = tmp_path / "inputs"
    assert f'"{LAYER_IDS}": [\n    2,\n    18,\n    33\n  ]' in (inputs / "config.json").read_text()
    default = eagle3(tmp_path / "default")
    assert open_draft(outputs).aux == open_draft(inputs).aux == (2, 18, 33)
    assert open_draft(default).aux is None
    for head in (outputs, default):
        assert verify(head, model).result["aux_boundaries"] == [2, 18, 33]
    command("export-draft", inputs, tmp_path / "again", *words)
    assert verify(tmp_path / "again", model).result["aux_ids"] == [1, 17, 32]
    with changed_config(inputs) as config:
        config[LAYER_IDS] = [2, 18, 37]
    assert "aux-range" in command("export-draft", inputs, tmp_path / "x", *words, "--json", code=1).codes


@pytest.mark.parametrize(
    ("family", "pattern", "forgotten"),
    [
        ("qwen3_next", "mtp.layers.0*", "mtp.fc"),
        ("qwen3_5_text", "re:mtp\\.layers.*", "mtp.fc"),
        ("glm4_moe", "model.layers.2.mlp*", "model.layers.2.eh_proj"),
    ],
)
def test_the_module_that_a_pattern_forgets(family: str, pattern: str, forgotten: str, verify: Run, tiny: Tiny) -> None:
    """The list had the layer and not its projection (vllm-project/vllm#38832): the line to add is told."""
    model = tiny(family, layers=2)
    scheme = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": [pattern]}
    with changed_config(model) as config:
        config["quantization_config"] = scheme
    found = verify(model, model, code=1).finding("quant-exclude")
    assert f'"{forgotten}"' in found["fix"] and found["fix"].startswith("add to ignore")
    lines = found["fix"].partition(": ")[2].replace('"', "").split(", ")
    with changed_config(model) as config:
        config["quantization_config"]["ignore"] = [pattern, *lines]
    assert "quant-exclude" not in verify(model, model).codes


@pytest.mark.parametrize("allowed", [[], ["--allow-vocab-padding"]])
def test_an_mtp_layer_shares_the_embedding_row_by_row(
    allowed: list[str], verify: Run, tiny: Tiny, shared_tiny: Tiny
) -> None:
    """Rows of padding may differ where a head has a vocabulary of its own, never where it reads the target's."""
    for family in ("mimo", "glm4_moe"):
        head = tiny(family, vocab=36)
        assert "vocab-size" in verify(head, shared_tiny(family, vocab=40), *allowed, code=1).codes


def test_views_and_pairs_are_written_as_tensors_of_their_own(command: Command, tmp_path: Path) -> None:
    """A .bin keeps tensors that share memory; what is written of it holds each once, and no more than it needs (H9)."""
    model, whole = target(tmp_path / "target", weights=True), eagle(tmp_path / "whole")
    tensors = load_file(whole / "model.safetensors")
    fused = torch.cat([tensors["layers.0.mlp.gate_proj.weight"], tensors["layers.0.mlp.up_proj.weight"]])
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    shared = {
        **tensors,
        "layers.0.mlp.gate_proj.weight": fused[:16],
        "layers.0.mlp.up_proj.weight": fused[16:],
        "embed_tokens.weight": table,
    }
    head = Path(shutil.copytree(whole, tmp_path / "head"))
    (head / "model.safetensors").unlink()
    torch.save(shared, head / "pytorch_model.bin")
    command("export-draft", head, tmp_path / "out", "--target", model)
    found = hf_tensors(tmp_path / "out")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    for tensor in found.values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    with changed(tmp_path / "out" / "model.safetensors") as written:
        assert written["layers.0.mlp.gate_proj.weight"].shape == (16, 8)
