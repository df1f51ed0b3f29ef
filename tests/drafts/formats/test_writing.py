"""Each writer says what its format says, and refuses what it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.drafts.export import Exported, Options, export_draft
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError, Finding
from ckpt_tools.report import Outcome
from tests.checkpoints import assert_same

from .heads import (
    D2T,
    DV,
    EAGLE,
    EAGLE3,
    IDS,
    MTP,
    Tensors,
    V,
    config_of,
    eagle3_config,
    eagle3_tensors,
    eagle_tensors,
    latent_config,
    latent_tensors,
    llama_config,
    random,
    speculators_config,
    target,
    tensors_of,
    write,
)


def exported(head: Path, out: Path, goal: Path, **options: Any) -> Outcome[Exported]:
    return export_draft(head, out, goal, Options(**options))


def refused(head: Path, tmp_path: Path, **options: Any) -> list[Finding]:
    """The findings with which an export fails; nothing may be left."""
    with pytest.raises(CkptError) as caught:
        exported(head, tmp_path / "out", target(tmp_path / "target"), **options)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    return list(caught.value.findings)


def smollm2(folder: Path, head: Path) -> Path:
    """The target's config, as far as it matters, from the head's."""
    config = config_of(head) | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("head", [EAGLE, EAGLE3, MTP])
def test_the_trained_heads_come_out_as_they_are(head: Path, tmp_path: Path) -> None:
    goal = MTP if head == MTP else smollm2(tmp_path / "target", head)
    out = tmp_path / "out"
    exported(head, out, goal)
    assert (out / "model.safetensors").read_bytes() == (head / "model.safetensors").read_bytes()
    assert config_of(out) == config_of(head)
    assert (out / "configuration_mimo.py").exists() == (head == MTP)


def test_eagle3_through_speculators_and_back(tmp_path: Path) -> None:
    goal = smollm2(tmp_path / "target", EAGLE3)
    exported(EAGLE3, tmp_path / "theirs", goal, format="speculators", target_name="org/SmolLM2")
    theirs = config_of(tmp_path / "theirs")
    assert theirs["transformer_layer_config"]["num_attention_heads"] == 9
    assert theirs["speculators_config"]["verifier"] == {
        "name_or_path": "org/SmolLM2",
        "architectures": ["LlamaForCausalLM"],
    }
    assert not {"draft_vocab_size", "architectures"} & theirs["transformer_layer_config"].keys()
    assert "layers.0.hidden_norm.weight" in tensors_of(tmp_path / "theirs")
    exported(tmp_path / "theirs", tmp_path / "back", goal)
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (EAGLE3 / "model.safetensors").read_bytes()
    assert config_of(tmp_path / "back") == config_of(EAGLE3)


def test_aux_ids_keep_their_boundaries(tmp_path: Path) -> None:
    """hidden_states index k (speculators) is the output of layer k-1 (SGLang)."""
    head = write(tmp_path / "head", speculators_config([3, 4, 6]), eagle3_tensors("layers.0."))
    goal = target(tmp_path / "target")
    exported(head, tmp_path / "out", goal)
    nested = config_of(tmp_path / "out")["eagle_config"]
    assert nested == {"eagle_aux_hidden_state_layer_ids": [2, 3, 5], "use_aux_hidden_state": True}
    exported(tmp_path / "out", tmp_path / "again", goal, format="speculators")
    assert config_of(tmp_path / "again")["eagle_aux_hidden_state_layer_ids"] == [3, 4, 6]


def test_ids_of_the_other_convention_are_suspected(tmp_path: Path) -> None:
    head = write(tmp_path / "head", speculators_config([1, 3, 4]), eagle3_tensors("layers.0."))
    found = exported(head, tmp_path / "out", target(tmp_path / "target")).findings
    assert [f.code for f in found if f.severity == "warning"] == ["aux-convention-unclear", "draft-context-short"]


def test_eagle1_gets_a_bias_of_zeros(tmp_path: Path) -> None:
    """SGLang's class always has fc.bias and never notices that it was not stored."""
    tensors = eagle_tensors() | random({"layers.0.input_layernorm.weight": (32,), "embed_tokens.weight": (V, 32)})
    head = write(tmp_path / "head", llama_config(bias=False), tensors, "pytorch_model.bin")
    outcome = exported(head, tmp_path / "out", target(tmp_path / "target"))
    expected = eagle_tensors() | {"fc.bias": torch.zeros(32, dtype=torch.bfloat16)}
    written = tensors_of(tmp_path / "out")
    assert_same(written, {**expected, **{n: tensors[n] for n in expected if n in tensors}})
    assert outcome.result.made == ["fc.bias"] and outcome.result.architecture == "LlamaForCausalLMEagle"
    config = config_of(tmp_path / "out")
    assert (config["architectures"], config["max_position_embeddings"]) == (["LlamaForCausalLMEagle"], 512)


def test_a_qwen2_head_keeps_its_biases(tmp_path: Path) -> None:
    head = write(tmp_path / "head", llama_config() | {"model_type": "qwen2"}, eagle_tensors(bias=True))
    exported(head, tmp_path / "out", target(tmp_path / "target"))
    config = config_of(tmp_path / "out")
    assert (config["architectures"], config["model_type"]) == (["Qwen2ForCausalLMEagle"], "qwen2")
    assert "layers.0.self_attn.q_proj.bias" in tensors_of(tmp_path / "out")


def test_the_fields_that_sglang_stumbles_over(tmp_path: Path) -> None:
    """No draft_vocab_size: AttributeError. target_hidden_size null: TypeError. Another class name: a plain Llama."""
    config = {k: v for k, v in eagle3_config(target_hidden_size=None).items() if k != "draft_vocab_size"}
    head = write(tmp_path / "head", config | {"architectures": ["Eagle3LlamaForCausalLM"]}, eagle3_tensors())
    exported(head, tmp_path / "out", target(tmp_path / "target"))
    written = config_of(tmp_path / "out")
    assert written["draft_vocab_size"] == DV and "target_hidden_size" not in written
    assert written["architectures"] == ["LlamaForCausalLMEagle3"]


def test_rope_comes_through_and_none_is_invented(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 256
    goal = target(tmp_path / "target")
    for name, extra in (("with", {"rope_scaling": scaling, "rope_theta": 500000.0}), ("without", {})):
        exported(write(tmp_path / name, eagle3_config(**extra), eagle3_tensors()), tmp_path / f"{name}-out", goal)
    assert config_of(tmp_path / "with-out")["rope_scaling"] == scaling
    assert config_of(tmp_path / "with-out")["rope_theta"] == 500000.0
    assert "rope_scaling" not in config_of(tmp_path / "without-out")


@pytest.mark.parametrize(
    ("config", "options", "form", "what"),
    [
        ({"norm_before_residual": True}, {}, None, "norm_before_residual"),
        ({}, {"qk_norm": True}, None, "q_norm"),
        ({}, {"bias": True}, None, "qkv bias"),
        ({"norm_output": False}, {}, "specforge", "norm_output false"),
    ],
)
def test_what_sglang_cannot_express(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], form: str | None, what: str
) -> None:
    head = write(tmp_path / "head", eagle3_config(**config), eagle3_tensors(**options))
    (finding,) = refused(head, tmp_path, form=form)
    assert finding.code == "format-cannot-express" and what in finding.actual


def test_the_last_boundary_is_refused(tmp_path: Path) -> None:
    head = write(tmp_path / "head", speculators_config([2, 4, 8]), eagle3_tensors("layers.0."))
    assert [f.code for f in refused(head, tmp_path)] == ["aux-range"]


@pytest.mark.parametrize(
    ("config", "tensors", "code"),
    [
        ({"hidden_size": 64}, None, "shape"),
        ({"vocab_size": 2 * V}, None, "shape"),
        ({}, {"d2t"}, "d2t-missing"),
    ],
)
def test_a_broken_head_is_not_written(
    tmp_path: Path, config: dict[str, Any], tensors: set[str] | None, code: str
) -> None:
    every: Tensors = {n: t for n, t in eagle3_tensors().items() if n not in (tensors or ())}
    assert code in [f.code for f in refused(write(tmp_path / "head", eagle3_config() | config, every), tmp_path)]


def test_a_head_for_another_target_is_not_written(tmp_path: Path) -> None:
    head = write(tmp_path / "head", eagle3_config(), eagle3_tensors())
    with pytest.raises(CkptError) as caught:
        exported(head, tmp_path / "out", EAGLE3)
    assert {f.code for f in caught.value.findings} == {"hidden-size", "vocab-size"}


def test_maps_are_made_for_speculators(tmp_path: Path) -> None:
    """d2t and t2d, both or neither; int32 offsets become int64."""
    tensors = eagle3_tensors()
    mask = tensors.pop("t2d")
    head = write(tmp_path / "head", eagle3_config(), tensors)
    goal = target(tmp_path / "target")
    assert exported(head, tmp_path / "a", goal, format="speculators").result.made == ["t2d"]
    assert torch.equal(tensors_of(tmp_path / "a")["t2d"], mask)
    tensors["d2t"] = tensors["d2t"].int()
    exported(write(tmp_path / "head32", eagle3_config(), tensors), tmp_path / "b", goal)
    assert tensors_of(tmp_path / "b")["d2t"].tolist() == D2T and tensors_of(tmp_path / "b")["d2t"].dtype == torch.int64
    assert [i + d for i, d in enumerate(D2T)] == IDS


def test_norms_of_newer_heads(tmp_path: Path) -> None:
    """Four features, a norm each; SGLang's own field names come out."""
    config = eagle3_config(use_aux_norm=True, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]})
    tensors = eagle3_tensors(features=4) | random({f"fc_norm.{i}.weight": (32,) for i in range(4)})
    exported(write(tmp_path / "head", config, tensors), tmp_path / "out", target(tmp_path / "target"))
    assert config_of(tmp_path / "out")["fc_norm"] is True
    assert_same(tensors_of(tmp_path / "out"), tensors)
    assert open_draft(tmp_path / "out").aux == (2, 3, 4, 5)


def test_latent_attention_keeps_its_class(tmp_path: Path) -> None:
    head = write(tmp_path / "head", latent_config(), latent_tensors())
    exported(head, tmp_path / "out", target(tmp_path / "target"))
    config = config_of(tmp_path / "out")
    assert (config["architectures"], config["model_type"]) == (["Eagle3DeepseekV2ForCausalLM"], "deepseek_v3")
    assert_same(tensors_of(tmp_path / "out"), latent_tensors())
    assert [f.code for f in refused(head, tmp_path / "again", format="speculators")] == ["format-cannot-express"]
