"""verify-draft over public failures of shape and config, each on a small head built for it (F, L6, L8)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import changed, changed_config
from tests.conftest import Tiny
from tests.drafts.conftest import Run, severities
from tests.drafts.heads import eagle, eagle3, target


def narrow(tmp_path: Path, embedding: bool = True, stated: bool = True, columns: int = 24) -> Path:
    """An EAGLE-3 head of width 6 for a target of width 8."""
    head = eagle3(tmp_path / "head", wide=8, hidden_size=6, **({"target_hidden_size": 8} if stated else {}))
    with changed(head / "model.safetensors") as tensors:
        if embedding:
            tensors["embed_tokens.weight"] = torch.randn(32, 6).bfloat16()
        tensors["fc.weight"] = torch.randn(6, columns).bfloat16()
    return head


def test_f1_a_narrower_eagle3_head(verify: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    assert verify(narrow(tmp_path / "a"), model).result["fits"]
    ran = verify(narrow(tmp_path / "b", columns=18), model, code=1)
    assert (ran.finding("fc-shape")["expected"], ran.finding("fc-shape")["actual"]) == ("[6, 24]", "[6, 18]")
    ran = verify(narrow(tmp_path / "c", embedding=False), model, code=1)
    assert "6" in ran.finding("embed-required")["expected"] and "8" in ran.finding("embed-required")["expected"]
    assert severities(verify(narrow(tmp_path / "d", stated=False), model))["target-hidden-inferred"] == "warning"
    assert "hidden-size" in verify(eagle(tmp_path / "e", hidden_size=6, num_attention_heads=4), model, code=1).codes


def test_l8_said_in_inputs(verify: Run, tmp_path: Path) -> None:
    found = verify(eagle(tmp_path / "head", hidden_size=6), target(tmp_path / "target"), code=1).finding("hidden-size")
    assert (found["expected"], found["actual"]) == ("16 inputs (2x8)", "12 inputs (2x6)")


def test_f2_the_algorithm(verify: Run, tmp_path: Path) -> None:
    head, model = eagle(tmp_path / "head"), target(tmp_path / "target")
    ran = verify(head, model, "--algorithm", "eagle3", code=1)
    assert "looks like EAGLE-1/2" in ran.finding("algorithm")["what"]
    assert verify(head, model, "--algorithm", "eagle").result["kind"] == "eagle"
    assert "algorithm" in verify(eagle3(tmp_path / "three"), model, "--algorithm", "eagle", code=1).codes


def test_f3_the_target_itself(verify: Run, tmp_path: Path, shared_tiny: Tiny) -> None:
    """Also through a link. A target that has MTP layers is its own head."""
    model = target(tmp_path / "target", weights=True, num_hidden_layers=2)
    (tmp_path / "link").symlink_to(model)
    for head in (model, tmp_path / "link"):
        found = verify(head, model, code=1).finding("not-a-draft-head")
        assert "no fc, no MTP layer, 2 ordinary layers" in found["actual"]
    folder = shared_tiny("mimo")
    ran = verify(folder, folder, "--algorithm", "nextn")
    assert ran.result["fits"] and ran.result["kind"] == "mtp"


def test_f4_near_matches(verify: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    found = verify(eagle3(tmp_path / "a", architectures=["LlamaForCausalLMEagel3"]), model, code=1).finding(
        "architecture"
    )
    assert found["expected"] == '["LlamaForCausalLMEagle3"]' and "LlamaForCausalLMEagle3" in found["fix"]
    for wrong in ([], None, "LlamaForCausalLMEagle3"):
        head = eagle3(tmp_path / f"b{wrong}", architectures=wrong)
        assert "architecture" in verify(head, model, code=1).codes


@pytest.mark.parametrize(
    ("ids", "outcome"),
    [
        ([1, 17, 32], "ok"),
        (None, "ok"),
        ([2, 18, 33], "aux-convention-unclear"),
        ([0, 16, 31], "aux-convention-unclear"),
        ([1, 18, 33], "aux-convention-unclear"),
        ([5, 10, 20], "ok"),
        ([1, 17, 37], "aux-range"),
        ([1, 17, 35], "aux-range"),
        ([1, 17, 17], "aux-order"),
    ],
)
def test_f6_which_layer(verify: Run, tmp_path: Path, ids: list[int] | None, outcome: str) -> None:
    """36 layers: SGLang's ids name outputs, its default [2, 18, 33] names inputs."""
    nested = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    ran = verify(
        eagle3(tmp_path / "head", **nested),
        target(tmp_path / "target", num_hidden_layers=36),
        code=int(outcome in ("aux-range", "aux-order")),
    )
    (line,) = [check for check in ran.result["checks"] if check["name"] == "aux layers"]
    assert outcome in (line["code"], line["outcome"])
    if outcome == "ok" and ids != [5, 10, 20]:
        assert ran.result["aux_boundaries"] == [2, 18, 33] and ran.result["aux_ids"] == [1, 17, 32]


def test_f8_four_layers_and_the_last_boundary(verify: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")

    def with_ids(name: str, ids: list[int], aux: int) -> Path:
        return eagle3(tmp_path / name, aux=aux, eagle_config={"eagle_aux_hidden_state_layer_ids": ids})

    assert verify(with_ids("a", [1, 3, 5, 8], 4), model).result["fits"]
    assert "fc-shape" in verify(with_ids("b", [1, 3, 5, 8], 3), model, code=1).codes
    last = with_ids("c", [1, 5, 11], 3)
    assert "before the final norm" in verify(last, model, code=1).finding("aux-range")["what"]
    (line,) = [c for c in verify(last, model, "--server", "vllm").result["checks"] if c["name"] == "aux layers"]
    assert line["outcome"] == "ok" and "before the final norm" in line["actual"]


def test_f8_norm_before_fc(verify: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    head = eagle3(tmp_path / "head", norm_before_fc=True)
    assert "norm-flag" in verify(head, model, code=1).codes
    with changed(head / "model.safetensors") as tensors:
        tensors["input_norm.weight"] = torch.randn(24).bfloat16()
    assert verify(head, model).result["fits"]
    with changed_config(head) as config:
        del config["norm_before_fc"]
    assert "norm-flag" in verify(head, model, code=1).codes


def test_f10_context(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head", max_position_embeddings=256)
    found = verify(head, model, code=1).finding("draft-context-short")
    assert "4096" in found["expected"] and found["actual"] == "256"
    assert severities(verify(head, model, "--server", "vllm"))["draft-context-short"] == "warning"
    assert verify(eagle3(tmp_path / "longer", max_position_embeddings=8192), model).result["fits"]


def test_f11_rope(verify: Run, tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    model = target(tmp_path / "target", rope_scaling=llama3, rope_theta=500000.0)
    assert severities(verify(eagle3(tmp_path / "none"), model))["rope-differs"] == "warning"
    old = {"type": "llama3", **{k: int(v) for k, v in llama3.items() if k != "rope_type"}}
    same = eagle3(tmp_path / "same", rope_scaling=old, rope_theta=500000)
    assert "rope-differs" not in verify(same, model).codes


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [((3, 1, 4), True), ((3, 1, 3), False), ((3, 2, 5), True), ((0, 1, 1), False), ((3, 1, None), True)],
)
def test_l6_three_numbers(verify: Run, tmp_path: Path, numbers: tuple[int | None, ...], fits: bool) -> None:
    words = [
        word
        for name, number in zip(("--steps", "--topk", "--draft-tokens"), numbers, strict=True)
        if number is not None
        for word in (name, number)
    ]
    ran = verify(eagle3(tmp_path / "head"), target(tmp_path / "target"), *words, code=int(not fits))
    assert ("spec-args" in ran.codes) == (not fits)
    if numbers == (3, 1, 3):
        assert ran.finding("spec-args")["expected"].startswith("4 draft tokens")


def test_l6_one_layer_many_steps(verify: Run, shared_tiny: Tiny) -> None:
    folder = shared_tiny("mimo")
    assert severities(verify(folder, folder, "--steps", 3))["mtp-layer-reused"] == "note"


def test_an_mtp_layer_under_another_number(verify: Run, tiny: Tiny, shared_tiny: Tiny) -> None:
    """SGLang reads model.layers.{num_hidden_layers} and nothing else, without a word."""
    model, head = shared_tiny("glm4_moe"), tiny("glm4_moe")
    assert verify(head, model).result["fits"]
    with changed(head / "model.safetensors") as tensors:
        for name in list(tensors):
            moved = name.replace("model.layers.2.", "model.layers.61.")
            tensors[moved] = tensors.pop(name)
            if moved == name and name.startswith("model.layers."):
                del tensors[name]
    found = verify(head, model, code=1).finding("mtp-index")
    assert "model.layers.2" in found["expected"] and "model.layers.61" in found["actual"]
    assert "mtp-index" in verify(model, shared_tiny("glm4_moe", layers=3), code=1).codes
