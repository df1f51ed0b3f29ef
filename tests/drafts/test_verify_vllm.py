"""verify-draft for vLLM: names that its classes stop at, tensors that they have no place for, aux ids that it does not see.

What vLLM does was read in the files of its wheel 0.33.0 (named in ckpt_tools/drafts/servers.py): it does not run here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import changed, changed_config
from tests.command import Ran
from tests.conftest import Command, Tiny
from tests.drafts.formats import heads as producers
from tests.drafts.heads import eagle, eagle3, target

Verify = Callable[..., Ran]


@pytest.fixture
def verify(command: Command, tmp_path: Path) -> Verify:
    model = target(tmp_path / "target")

    def call(head: Path, code: int = 0) -> Ran:
        return command("verify-draft", head, "--target", model, "--server", "vllm", "--json", code=code)

    return call


def renamed(head: Path, lead: str) -> Path:
    with changed(head / "model.safetensors") as tensors:
        for name in list(tensors):
            tensors[lead + name] = tensors.pop(name)
    return head


def with_tensor(head: Path, name: str, *shape: int) -> Path:
    with changed(head / "model.safetensors") as tensors:
        tensors[name] = torch.randn(shape).bfloat16()
    return head


def without(head: Path, name: str) -> Path:
    with changed(head / "model.safetensors") as tensors:
        del tensors[name]
    return head


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"])
def test_an_eagle3_head_fits(verify: Verify, tmp_path: Path, name: str) -> None:
    ran = verify(eagle3(tmp_path / "head", architectures=[name]))
    assert ran.result["fits"] and ran.result["server_class"] == "Eagle3LlamaForCausalLM"


def test_the_names_of_speculators_are_for_its_form(verify: Verify, tmp_path: Path) -> None:
    """They are in no registry: speculators' heads get their class by the type of their layer."""
    assert "architecture" in verify(eagle3(tmp_path / "flat", architectures=["Eagle3DraftModel"]), code=1).codes


@pytest.mark.parametrize(
    ("kind", "norms", "name", "codes"),
    [
        ("llama", False, "Eagle3LlamaForCausalLM", []),
        ("qwen3", True, "Eagle3Qwen3ForCausalLM", []),
        ("llama", True, "Eagle3LlamaForCausalLM", ["tensors-never-loaded"]),
        ("qwen3", False, "Eagle3Qwen3ForCausalLM", ["tensors-never-set"]),
        ("gemma", False, "", ["architecture"]),
    ],
)
def test_the_layer_tells_the_class(
    command: Command, tmp_path: Path, kind: str, norms: bool, name: str, codes: list[str]
) -> None:
    config = producers.speculators_config([2, 4, 5])
    config["transformer_layer_config"] |= {"model_type": kind, "max_position_embeddings": 512}
    head = producers.write(tmp_path / "head", config, producers.eagle3_tensors("layers.0.", qk_norm=norms))
    goal = producers.target(tmp_path / "goal")
    words = ("verify-draft", head, "--target", goal, "--server", "vllm", "--json")
    ran = command(*words, code=1 if codes else 0)
    assert [f["code"] for f in ran.findings if f["severity"] == "error"] == codes
    assert ran.result["server_class"] == name


def test_four_features(command: Command, tmp_path: Path) -> None:
    """The class for Llama layers makes fc for three unless it is told; our export tells it, the one for Qwen3 layers counts."""
    goal, tensors = producers.target(tmp_path / "goal"), producers.eagle3_tensors(features=4)
    head = producers.write(
        tmp_path / "head", producers.eagle3_config() | {"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 5]}, tensors
    )
    words = ("--target", goal, "--server", "vllm", "--json")
    assert command("verify-draft", head, *words, code=1).finding("fc-features")["actual"] == "3"
    command("export-draft", head, tmp_path / "out", "--target", goal, "--format", "speculators", "--target-name", "a/b")
    assert "fc-features" not in command("verify-draft", tmp_path / "out", *words).codes
    with changed_config(tmp_path / "out") as config:
        del config["transformer_layer_config"]["num_aux_hidden_states"]
    assert "fc-features" in command("verify-draft", tmp_path / "out", *words, code=1).codes


def test_vllm_has_no_fc_bias_in_eagle1(verify: Verify, tmp_path: Path) -> None:
    """The head that SGLang needs its fc.bias of is the one that vLLM stops at."""
    head = eagle(tmp_path / "head", architectures=["EagleLlamaForCausalLM"])
    found = verify(head, code=1).finding("tensors-never-loaded")
    assert found["actual"] == "fc.bias" and "stops" in found["what"]
    ran = verify(without(head, "fc.bias"))
    assert ran.result["fits"] and ran.result["server_class"] == "EagleLlamaForCausalLM"


NAMES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "model.": (lambda at: renamed(eagle3(at), "model."), "model.fc.weight"),
    "draft_model.": (lambda at: renamed(eagle3(at), "draft_model."), "draft_model.fc.weight"),
    "a bias in fc": (lambda at: with_tensor(eagle3(at), "fc.bias", 8), "fc.bias"),
    "q and k norms": (
        lambda at: with_tensor(
            with_tensor(eagle3(at), "midlayer.self_attn.q_norm.weight", 2), "midlayer.self_attn.k_norm.weight", 2
        ),
        "midlayer.self_attn.k_norm.weight, midlayer.self_attn.q_norm.weight",
    ),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_it_stops_at(verify: Verify, tmp_path: Path, kind: str) -> None:
    make, name = NAMES[kind]
    found = verify(make(tmp_path / "head"), code=1).finding("tensors-never-loaded")
    assert all(part in found["actual"] for part in name.split(", "))


def test_a_missing_tensor_stays_unset(verify: Verify, tmp_path: Path) -> None:
    found = verify(without(eagle3(tmp_path / "head"), "midlayer.mlp.up_proj.weight"), code=1)
    assert "layers.0.mlp.up_proj.weight" in found.finding("tensors-never-set")["expected"]


def ids(config: dict[str, Any]) -> dict[str, Any]:
    return {"eagle_aux_hidden_state_layer_ids": config}


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, None),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}, None),  # the default, said as outputs
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}}, "[2, 6, 9]"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}, "[1, 4, 7]"),
    ],
)
def test_aux_ids(verify: Verify, tmp_path: Path, changes: dict[str, Any], taken: str | None) -> None:
    """vLLM takes ids at the top level, each for the input of that layer; of nested ids it sees nothing."""
    ran = verify(eagle3(tmp_path / "head", **changes))
    if taken is None:
        assert "aux-ids-not-read" not in ran.codes
    else:
        assert taken in ran.finding("aux-ids-not-read")["actual"]


def test_what_speculators_form_says_is_what_vllm_takes(command: Command, tmp_path: Path) -> None:
    """The export for speculators is the one that vLLM reads, norm_before_residual included."""
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    head = producers.write(tmp_path / "head", producers.eagle3_config(**nested), producers.eagle3_tensors())
    goal, out = producers.target(tmp_path / "goal"), tmp_path / "out"
    command("export-draft", head, out, "--target", goal, "--format", "speculators", "--target-name", "a/b")
    with changed_config(out) as config:
        config["norm_before_residual"] = True
        config["transformer_layer_config"]["max_position_embeddings"] = 512
    ran = command("verify-draft", out, "--target", goal, "--server", "vllm", "--json")
    assert ran.result["fits"] and "aux-ids-not-read" not in ran.codes
    assert "server-cannot-express" in command("verify-draft", out, "--target", goal, "--json", code=1).codes


@pytest.mark.parametrize(
    ("family", "name"),
    [("mimo", "MiMoMTP"), ("glm4_moe", "Glm4MoeMTP"), ("deepseek_v3", "DeepSeekMTP"), ("qwen3_next", "Qwen3NextMTP")],
)
def test_mtp_layers(command: Command, shared_tiny: Tiny, family: str, name: str) -> None:
    model = shared_tiny(family, **({"layers": 4} if family == "qwen3_next" else {}))
    ran = command("verify-draft", model, "--target", model, "--server", "vllm", "--json")
    assert (ran.result["fits"], ran.result["server_class"]) == (True, name)
