"""verify-draft over the real trained heads of SmolLM2: whole ones pass, and every damage has its code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import changed, changed_config, iteration
from tests.command import Ran
from tests.conftest import Command
from tests.drafts.heads import Tensors, asset, target_of

KINDS = {"mtp": "MiMoMTP", "eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
Verify = Callable[..., Ran]


@pytest.fixture
def verify(command: Command, tmp_path: Path) -> Verify:
    """Verify a real head after `damage(tensors)` and `edit(config)`."""

    def call(
        kind: str,
        *words: object,
        damage: Callable[[Tensors], Any] | None = None,
        edit: dict[str, Any] | None = None,
        retarget: dict[str, Any] | None = None,
        code: int | None = 1,
    ) -> Ran:
        head, target = asset(kind, tmp_path / "head"), target_of(kind, tmp_path / "target")
        if damage is not None:
            with changed(head / "model.safetensors") as tensors:
                damage(tensors)
        for folder, changes in ((head, edit), (target, retarget)):
            with changed_config(folder) as config:
                for key, value in (changes or {}).items():
                    config.pop(key, None) if value is ... else config.update({key: value})
        return command("verify-draft", head, "--target", target, "--json", *words, code=code)

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_whole_heads_fit(verify: Verify, kind: str) -> None:
    ran = verify(kind, code=0)
    assert ran.codes == ["target-not-recorded"] and ran.findings[0]["severity"] == "note"
    assert ran.result["fits"] and ran.result["server_class"] == KINDS[kind] and ran.result["kind"] == kind
    assert {check["outcome"] for check in ran.result["checks"]} <= {"ok", "note", "not checked"}
    if kind == "eagle3":
        assert ran.result["aux_boundaries"] == [2, 15, 27] and ran.result["aux_ids"] == [1, 14, 26]


def test_it_takes_a_second(command: Command, tmp_path: Path) -> None:
    target = target_of("eagle3", tmp_path / "target")
    head = asset("eagle3", tmp_path / "head")
    began = time.process_time()
    command("verify-draft", head, "--target", target, "--json")
    assert time.process_time() - began < 1


# name: (head, damage, edits of its config, edits of the target's, code)
def drop(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: value(tensors[name])})


def rename(prefix: str) -> Callable[[Tensors], Any]:
    def apply(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return apply


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    copy.view(-1)[5] = float("nan")
    return copy


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}


def nvfp4(module: str) -> Callable[[Tensors], Any]:
    """A projection as ModelOpt packs it: two values to a byte, a scale per 16 of them, one for all."""

    def apply(tensors: Tensors) -> None:
        rows, columns = tensors[f"{module}.weight"].shape
        tensors[f"{module}.weight"] = torch.ones(rows, columns // 2, dtype=torch.uint8)
        tensors[f"{module}.weight_scale"] = torch.ones(rows, columns // 16).to(torch.float8_e4m3fn)
        tensors[f"{module}.weight_scale_2"] = torch.tensor(0.5)

    return apply


def activation_scale(tensors: Tensors) -> None:
    tensors["model.mtp_layers.0.mlp.up_proj.input_scale"] = torch.tensor(0.5)


def renumber(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("mtp_layers.0.", "mtp_layers.1.")] = tensors.pop(name)


DAMAGES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any], str]] = {
    "F1 another hidden size": ("eagle", None, {}, {"hidden_size": 960, "num_attention_heads": 15}, "hidden-size"),
    "F1 fc": ("eagle3", put("fc.weight", lambda t: t[:, :1152].contiguous()), {}, {}, "fc-shape"),
    "F2 an EAGLE-1 head as EAGLE-3": ("eagle", None, {"architectures": ["LlamaForCausalLMEagle3"]}, {}, "algorithm"),
    "F4 another server's name": ("eagle3", None, {"architectures": ["Eagle3LlamaForCausalLM"]}, {}, "architecture"),
    "F4 two names": ("eagle", None, {"architectures": ["LlamaForCausalLMEagle", "X"]}, {}, "architecture"),
    "F6 outside": (
        "eagle3",
        None,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 37]}},
        {},
        "aux-range",
    ),
    "F6 default of a shallow target": ("eagle3", None, {}, {"num_hidden_layers": 2}, "aux-range"),
    "aux out of order": (
        "eagle3",
        None,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [20, 14, 3]}},
        {},
        "aux-order",
    ),
    "aux ids at the top": ("eagle3", None, {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}, {}, "aux-ids-not-read"),
    "F8 flag without tensor": ("eagle3", None, {"norm_before_fc": True}, {}, "norm-flag"),
    "F8 both flags": ("eagle3", None, {"norm_before_fc": True, "fc_norm": True}, {}, "config-conflict"),
    "norm_before_residual": ("eagle3", None, {"norm_before_residual": True}, {}, "server-cannot-express"),
    "F10 training length": ("eagle3", None, {"max_position_embeddings": 2048}, {}, "draft-context-short"),
    "no draft_vocab_size": ("eagle3", None, {"draft_vocab_size": ...}, {}, "config-key-missing"),
    "target_hidden_size null": ("eagle3", None, {"target_hidden_size": None}, {}, "config-key-null"),
    "G1 no d2t": ("eagle3", drop("d2t"), {}, {}, "d2t-missing"),
    "G2 prefix": ("eagle3", put("d2t", torch.zeros_like), {}, {}, "d2t-default"),
    "d2t absolute": ("eagle3", put("d2t", lambda t: t + torch.arange(len(t))), {}, {}, "d2t-absolute"),
    "G11 range": ("eagle3", put("d2t", lambda t: t + 49152 * (torch.arange(len(t)) == 99)), {}, {}, "d2t-range"),
    "d2t negative": ("eagle3", put("d2t", lambda t: t - 9 * (torch.arange(len(t)) == 0)), {}, {}, "d2t-range"),
    "d2t twice": (
        "eagle3",
        put("d2t", lambda t: t - (torch.arange(len(t)) == 1) * (t[1] - t[0] + 1)),
        {},
        {},
        "d2t-duplicates",
    ),
    "d2t shuffled against t2d": (
        "eagle3",
        put("t2d", lambda t: t.roll(1)),
        {},
        {},
        "t2d-disagrees",
    ),
    "G11 length": ("eagle3", put("d2t", lambda t: t[:-1].clone()), {}, {}, "d2t-length"),
    "E6 d2t as floats": ("eagle3", put("d2t", torch.Tensor.float), {}, {}, "d2t-dtype"),
    "G7 no lm_head": ("eagle3", drop("lm_head.weight"), {}, {}, "lm-head-missing"),
    "no fc.bias": ("eagle", drop("fc.bias"), {}, {}, "tensors-never-set"),
    "a missing tensor": ("eagle3", drop("midlayer.mlp.up_proj.weight"), {}, {}, "tensors-missing"),
    "a missing MTP tensor": ("mtp", drop("model.mtp_layers.0.input_proj.weight"), {}, {}, "tensors-missing"),
    "draft_model. prefix": ("eagle3", rename("draft_model."), {}, {}, "tensors-never-loaded"),
    "EAGLE-1 with model. prefix": ("eagle", rename("model."), {}, {}, "tensors-never-loaded"),
    "an unknown tensor": ("eagle3", lambda t: t.update({"x.weight": torch.ones(2)}), {}, {}, "tensors-unmapped"),
    "all zero": ("eagle", put("fc.weight", torch.zeros_like), {}, {}, "tensor-zero"),
    "constant": ("mtp", put("model.mtp_layers.0.input_proj.weight", torch.ones_like), {}, {}, "tensor-constant"),
    "nan": ("eagle3", put("midlayer.mlp.up_proj.weight", spoiled), {}, {}, "tensor-not-finite"),
    "an untied vocabulary": ("eagle", None, {}, {"vocab_size": 49280}, "vocab-size"),
    "MTP of another depth": ("mtp", None, {}, {"num_hidden_layers": 32}, "mtp-index"),
    "MTP of another width": ("mtp", None, {}, {"intermediate_size": 1024}, "dims-differ"),
    "MTP of another family": ("mtp", None, {}, {"model_type": "llama", "attention_bias": False}, "family-differs"),
    "F8 four layers and three features": (
        "eagle3",
        None,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 14, 26]}},
        {},
        "fc-shape",
    ),
    "F8 after the last layer": (
        "eagle3",
        None,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 29]}},
        {},
        "aux-range",
    ),
    "F8 tensor without flag": (
        "eagle3",
        lambda t: t.update({"input_norm.weight": torch.ones(1728)}),
        {},
        {},
        "norm-flag",
    ),
    "G11 one id more": ("eagle3", put("d2t", lambda t: torch.cat([t, t[-1:]])), {}, {}, "d2t-length"),
    "NVFP4": ("eagle3", nvfp4("midlayer.mlp.up_proj"), {"quantization_config": NVFP4}, {}, "head-quantised"),
    "an NVFP4 MTP layer": ("mtp", nvfp4("model.mtp_layers.0.mlp.up_proj"), {}, {}, "head-quantised"),
    "an activation scale": ("mtp", activation_scale, {}, {}, "head-quantised"),
    "an MTP layer of another number": ("mtp", renumber, {}, {}, "mtp-index"),
    "heads": ("eagle", None, {"num_key_value_heads": 4}, {}, "heads-not-divisible"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_has_its_code(verify: Verify, name: str) -> None:
    kind, damage, edit, retarget, code = DAMAGES[name]
    ran = verify(kind, damage=damage, edit=edit, retarget=retarget)
    assert code in [finding["code"] for finding in ran.findings if finding["severity"] == "error"], ran.codes
    assert not ran.result["fits"]
    finding = next(finding for finding in ran.findings if finding["code"] == code)
    assert finding["expected"] and finding["actual"] and finding["fix"] and finding["where"]


def test_warnings_do_not_refuse(verify: Verify) -> None:
    """F6: one id in each convention; F11: the target's rope has scaling; an untrained norm."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 15, 26]}
    ran = verify(
        "eagle3",
        damage=put("norm.weight", torch.ones_like),
        edit={"eagle_config": ids},
        retarget={"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        code=0,
    )
    assert [f["code"] for f in ran.findings if f["severity"] == "warning"] == [
        "aux-convention-unclear",
        "rope-differs",
        "norm-constant",
    ]
    assert ran.finding("rope-differs")["expected"] == "theta 100000, linear, factor 2"


def test_g4_zeros_are_right_where_nothing_is_reduced(verify: Verify) -> None:
    def whole(tensors: Tensors) -> None:
        tensors |= {"d2t": torch.zeros(8192, dtype=torch.int64), "t2d": torch.ones(8192, dtype=torch.bool)}

    small = {"vocab_size": 8192}
    ran = verify("eagle3", damage=whole, edit=small, retarget=small, code=0)
    assert [check["actual"] for check in ran.result["checks"] if check["name"] == "draft vocabulary"] == [
        "identity mapping"
    ]


def test_the_other_servers_words(verify: Verify, command: Command, tmp_path: Path) -> None:
    """vLLM takes this EAGLE-3 string as well, not SGLang's EAGLE-1 one; the fix names what is near."""
    verify("eagle3", "--server", "vllm", code=0)
    ran = command(
        "verify-draft",
        asset("eagle", tmp_path / "e"),
        "--target",
        tmp_path / "target",
        "--server",
        "vllm",
        "--json",
        code=1,
    )
    assert ran.codes[0] == "architecture" and "EagleLlamaForCausalLM" in ran.finding("architecture")["fix"]


def test_a_broken_file_is_told_from_a_misfit(command: Command, tmp_path: Path) -> None:
    """L8: exit 1 does not fit, 3 cannot be read, 2 the command line."""
    head, target = asset("eagle", tmp_path / "head"), target_of("eagle", tmp_path / "target")
    data = (head / "model.safetensors").read_bytes()
    (head / "model.safetensors").write_bytes(data[:-10])
    assert command("verify-draft", head, "--target", target, "--json", code=3).codes == ["file-truncated"]
    command("verify-draft", head, "--target", tmp_path / "none", "--json", code=3)
    command("verify-draft", head, "--json", code=2)


def test_the_table_for_people(command: Command, tmp_path: Path) -> None:
    head, target = asset("eagle3", tmp_path / "head"), target_of("eagle3", tmp_path / "target")
    ran = command("verify-draft", head, "--target", target)
    assert ran.out.rstrip().endswith("fits") and "boundaries [2, 15, 27]" in ran.out and ran.err == ""


def test_a_target_in_torch_dist(command: Command, shared_tiny: Callable[..., Path], tmp_path: Path) -> None:
    """The config that the conversion carries stands in for the folder."""
    command("convert", shared_tiny("mimo"), tmp_path / "td")
    ran = command("verify-draft", shared_tiny("mimo"), "--target", tmp_path / "td", "--json")
    assert ran.result["fits"] and json.loads((iteration(tmp_path / "td") / "hf/config.json").read_text())
    assert (
        command("verify-draft", tmp_path / "td", "--target", tmp_path / "td", "--json", code=1).codes[0]
        == "not-servable"
    )
