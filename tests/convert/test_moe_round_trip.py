"""MoE, latent attention, delta nets and their MTP layers: both ways to the bit, in every form, against torch alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.errors import CkptError
from tests.checkpoints import (
    assert_same,
    changed,
    config_of,
    hf_tensors,
    megatron_tensors,
    same_bits,
    tree,
    write_torch_dist,
)
from tests.conftest import Tiny

from .expected_moe import expected_moe, under_one_name

SHARED_INDEXER = {"indexer_types": ["full", "shared", "full", "shared"]}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {"shards": 3}),
    "qwen3_moe-v5-fp16": ("qwen3_moe", {"config_style": "v5", "dtype": "float16"}),
    "qwen3_moe-some-dense": ("qwen3_moe", {"layers": 4, "extra_config": {"mlp_only_layers": [0, 2]}}),
    "qwen3_moe-packed": ("qwen3_moe", {"expert_layout": "packed"}),
    "glm4": ("glm4", {}),
    "glm4-v5": ("glm4", {"config_style": "v5"}),
    "glm4_moe": ("glm4_moe", {"shards": 4}),
    "glm4_moe-v5-no-qk-norm": ("glm4_moe", {"config_style": "v5", "extra_config": {"use_qk_norm": False}}),
    "glm4_moe-no-copies": ("glm4_moe", {"mtp_copies": False}),
    "glm4_moe-no-mtp": ("glm4_moe", {"mtp": 0}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "glm4_moe_lite-v5": ("glm4_moe_lite", {"config_style": "v5", "layers": 3, "dense": 2}),
    "glm_moe_dsa": ("glm_moe_dsa", {"shards": 2}),
    "glm_moe_dsa-shared-indexer": ("glm_moe_dsa", {"layers": 4, "extra_config": SHARED_INDEXER}),
    "deepseek_v3": ("deepseek_v3", {"shards": 5}),
    "deepseek_v3-no-q-rank": ("deepseek_v3", {"extra_config": {"q_lora_rank": None}}),
    "deepseek_v3-two-mtp": ("deepseek_v3", {"mtp": 2, "config_style": "v5"}),
    "deepseek_v3-tied": ("deepseek_v3", {"tied": True}),
    "deepseek_v3-all-sparse": ("deepseek_v3", {"dense": 0, "mtp_experts": "packed"}),
    "deepseek_v32": ("deepseek_v32", {}),
    "kimi_k2": ("kimi_k2", {}),
    "qwen3_next": ("qwen3_next", {"layers": 4, "shards": 3}),
    "qwen3_next-v5-packed": ("qwen3_next", {"config_style": "v5", "expert_layout": "packed", "mtp_experts": "packed"}),
    "qwen3_next-no-mtp": ("qwen3_next", {"mtp": 0}),
    "qwen3_5": ("qwen3_5", {"shards": 3}),
    "qwen3_5-tied": ("qwen3_5", {"tied": True}),
    "qwen3_5_text": ("qwen3_5_text", {}),
    "qwen3_5_moe": ("qwen3_5_moe", {"shards": 2}),
    "qwen3_6_moe": ("qwen3_5_moe", {"mtp_experts": "packed", "keep_float32": False}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {"layers": 4}),
}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "per-layer": ({"layout": "per-layer", "max_shard_size": 20_000}, {}),
    "stacked": ({"layout": "stacked"}, {"stacked": True}),
    "gdn-slime": ({"variants": {"gdn": "slime"}}, {"gdn": "slime"}),
    "dsa-slime": ({"variants": {"dsa": "slime"}, "max_shard_size": 50_000}, {"dsa": "slime"}),
    "swapped-halves": ({"variants": {"mtp_halves": "swapped"}}, {"halves": "swapped"}),
}
ALIKE = ("qwen3_moe", "qwen3_moe-v5-fp16", "qwen3_moe-packed", "deepseek_v3-all-sparse", "glm4", "glm4-v5")
STACKED_BY_DEFAULT = ("glm4", "glm4-v5")  # dense: Megatron asks for stacked layers where no list describes them

ONE_NAME = ("glm4", "glm4-v5", "qwen3_5", "qwen3_5-tied", "qwen3_5_text")  # no norm has two names


def possible(model: str, form: str) -> bool:
    family = MODELS[model][0]
    if form == "stacked":
        return model in ALIKE
    if form == "per-layer":  # what most do anyway
        return model in (*ALIKE, "deepseek_v3", "qwen3_next", "qwen3_5_moe")
    wanted = {"gdn-slime": ("qwen3_next", "qwen3_5"), "dsa-slime": ("glm_moe_dsa", "deepseek_v32")}
    wanted["swapped-halves"] = ("qwen3_next",)
    return form not in wanted or family.startswith(wanted[form])


CASES = [(model, form) for model in MODELS for form in FORMS if possible(model, form)]


def source_of(model: str, shared_tiny: Tiny) -> Path:
    family, options = MODELS[model]
    return shared_tiny(family, **options)


def refused(source: Path, target: Path, options: Options) -> CkptError:
    with pytest.raises(CkptError) as caught:
        convert(source, target, options)
    assert not target.exists()
    return caught.value


@pytest.mark.parametrize(("model", "form"), CASES, ids=[f"{model}-{form}" for model, form in CASES])
def test_round_trip(model: str, form: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    source = source_of(model, shared_tiny)
    options, stated = FORMS[form]
    original, config = hf_tensors(source), config_of(source)

    convert(source, tmp_path / "td", Options(rest="carry", verify=True, **options))
    stacked = form != "per-layer" and (model in STACKED_BY_DEFAULT or form == "stacked")
    assert_same(megatron_tensors(tmp_path / "td"), expected_moe(config, original, **{"stacked": stacked, **stated}))

    variants = {kind: "swapped" for kind in ("mtp_halves",) if form == "swapped-halves"}
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True, max_shard_size=30_000, variants=variants))
    assert_same(hf_tensors(tmp_path / "hf"), original)
    assert (tmp_path / "hf" / "config.json").read_bytes() == (source / "config.json").read_bytes()


SAVED = [(model, which) for model in MODELS for which in (0, 1) if which == 0 or model not in ONE_NAME]


@pytest.mark.parametrize(("model", "which"), SAVED)
def test_what_training_saves_comes_back(model: str, which: int, shared_tiny: Tiny, tmp_path: Path) -> None:
    """A directory that torch wrote, every norm under one name, without a copy of the original inside."""
    source = source_of(model, shared_tiny)
    original = hf_tensors(source)
    tensors = under_one_name(expected_moe(config_of(source), original), which)
    write_torch_dist(tmp_path / "td", tensors)
    convert(tmp_path / "td", tmp_path / "hf", Options(hf_config=source, rest="carry", verify=True))
    assert_same(hf_tensors(tmp_path / "hf"), original)


@pytest.mark.parametrize("model", ["glm4_moe", "qwen3_next", "qwen3_5_moe", "qwen3_moe-some-dense", "glm_moe_dsa"])
def test_layers_of_different_kinds_are_not_stacked(model: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    problem = refused(source_of(model, shared_tiny), tmp_path / "td", Options(layout="stacked", rest="carry"))
    assert [finding.code for finding in problem.findings] == ["layout-impossible"]


@pytest.mark.parametrize("family", ["glm4_moe", "glm_moe_dsa", "deepseek_v3", "kimi_k2"])
def test_the_router_bias_stays_float32(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """bfloat16 would round 1 + 2^-10 to 1, and experts would be chosen otherwise."""
    source = tiny(family, layers=3)
    with changed(source / "model.safetensors") as tensors:
        biases = sorted(name for name in tensors if name.endswith("e_score_correction_bias"))
        for name in biases:
            assert tensors[name].dtype == torch.float32
            tensors[name].zero_()
            tensors[name][0] = 1 + 2**-10
    layers = [1, 2] if family == "kimi_k2" else [1, 2, 3]
    assert biases == [f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in layers]
    original = hf_tensors(source)

    convert(source, tmp_path / "td", Options(dtype="BF16", verify=True))
    found = {name: t for name, t in megatron_tensors(tmp_path / "td").items() if name.endswith("router.expert_bias")}
    assert len(found) == len(layers)
    assert all(tensor.dtype == torch.float32 and tensor[0] == 1.0009765625 for tensor in found.values())
    convert(tmp_path / "td", tmp_path / "hf", Options(dtype="BF16", verify=True))
    assert_same(hf_tensors(tmp_path / "hf"), original)


def test_a_router_bias_in_bfloat16_keeps_its_dtype(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("glm4_moe", keep_float32=False)
    convert(source, tmp_path / "td", Options(dtype="F32"))
    convert(tmp_path / "td", tmp_path / "hf", Options())
    original, found = hf_tensors(source), hf_tensors(tmp_path / "hf")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert same_bits(found[name], original[name])


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "glm_moe_dsa"])
def test_copies_in_the_mtp_layer_return_if_they_were_there(
    family: str, copies: bool, shared_tiny: Tiny, tmp_path: Path
) -> None:
    """And they follow the embedding and the head that were trained, not those of the original."""
    source = shared_tiny(family, mtp_copies=copies)
    convert(source, tmp_path / "td", Options())
    trained = megatron_tensors(tmp_path / "td")
    assert not [name for name in trained if "embed" in name and name.startswith("mtp.")]
    trained["embedding.word_embeddings.weight"] += 1
    trained["output_layer.weight"] -= 1
    write_torch_dist(tmp_path / "trained", under_one_name(trained, 0))
    convert(tmp_path / "trained", tmp_path / "hf", Options(hf_config=source))
    found, names = hf_tensors(tmp_path / "hf"), hf_tensors(source).keys()
    assert found.keys() == names
    pairs = {"embed_tokens": "model.embed_tokens.weight", "shared_head.head": "lm_head.weight"}
    for copy, main in pairs.items():
        assert (f"model.layers.2.{copy}.weight" in found) == copies
        assert same_bits(found.get(f"model.layers.2.{copy}.weight", found[main]), found[main])
    assert same_bits(found["lm_head.weight"], trained["output_layer.weight"][:40])


@pytest.mark.parametrize("copy", ["embed_tokens", "shared_head.head"])
def test_a_copy_that_differs_is_refused(copy: str, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3")
    with changed(source / "model.safetensors") as tensors:
        tensors[f"model.layers.2.{copy}.weight"][3, 5] += 1
    problem = refused(source, tmp_path / "td", Options())
    assert [finding.code for finding in problem.findings] == ["copy-differs"]
    assert f"model.layers.2.{copy}.weight" in str(problem)


def test_packed_and_single_mtp_experts_are_the_same_model(shared_tiny: Tiny, tmp_path: Path) -> None:
    """Qwen3.5 stores the experts of its MTP layer one by one, Qwen3.6 packed; its decoder packs them in both."""
    single = shared_tiny("qwen3_5_moe_text")
    tensors = hf_tensors(single)
    names = [name for name in tensors if re.fullmatch(r"mtp\.layers\.0\.mlp\.experts\.\d+\..*", name)]
    apart = {name: tensors.pop(name) for name in names}
    assert len(apart) == 36
    at = "mtp.layers.0.mlp.experts."
    rows = [[apart[f"{at}{e}.{part}_proj.weight"] for part in ("gate", "up")] for e in range(12)]
    tensors[f"{at}gate_up_proj"] = torch.stack([torch.cat(both) for both in rows])
    tensors[f"{at}down_proj"] = torch.stack([apart[f"{at}{e}.down_proj.weight"] for e in range(12)])
    packed = tmp_path / "packed"
    shutil.copytree(single, packed)
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})

    for source, name in ((single, "one"), (packed, "two")):
        convert(source, tmp_path / name, Options())
        convert(tmp_path / name, tmp_path / f"{name}-hf", Options())
        assert_same(hf_tensors(tmp_path / f"{name}-hf"), hf_tensors(source))
    assert_same(megatron_tensors(tmp_path / "one"), megatron_tensors(tmp_path / "two"))


def test_expert_ten_is_not_expert_one(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    with changed(source / "model.safetensors") as tensors:
        for name, tensor in tensors.items():
            if match := re.search(r"experts\.(\d+)\.", name):
                tensor.fill_(int(match[1]))
    convert(source, tmp_path / "td", Options())
    experts = megatron_tensors(tmp_path / "td")["decoder.layers.1.mlp.experts.experts.linear_fc1.weight"]
    assert experts[:, 0, 0].tolist() == list(range(12))
    assert torch.equal(experts, experts[:, :1, :1].expand_as(experts))


def test_rotary_buffers_are_left_out(shared_tiny: Tiny, tmp_path: Path) -> None:
    source = shared_tiny("kimi_k2", inv_freq=True)
    outcome = convert(source, tmp_path / "td", Options())
    assert "buffers-recomputed" in [finding.code for finding in outcome.findings]
    convert(tmp_path / "td", tmp_path / "hf", Options())
    original = hf_tensors(source)
    buffers = {name for name in original if name.endswith("inv_freq")}
    assert len(buffers) == 2
    assert_same(hf_tensors(tmp_path / "hf"), {name: t for name, t in original.items() if name not in buffers})


VISION = ["qwen3_5", "qwen3_5_moe"]


@pytest.mark.parametrize("model", VISION)
def test_another_tower_is_refused_unless_the_user_decides(model: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    source = source_of(model, shared_tiny)
    problem = refused(source, tmp_path / "td", Options())
    assert [finding.code for finding in problem.findings] == ["rest-undecided"]
    assert "model.visual." in problem.findings[0].actual
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", VISION)
def test_another_tower_is_carried_or_dropped(model: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    source = source_of(model, shared_tiny)
    original = hf_tensors(source)
    visual = {name for name in original if name.startswith("model.visual.")}
    assert len(visual) == 21
    language = {name: tensor for name, tensor in original.items() if name not in visual}
    for rest in ("carry", "drop"):
        convert(source, tmp_path / f"td-{rest}", Options(rest=rest, verify=True))
        assert not [name for name in megatron_tensors(tmp_path / f"td-{rest}") if "visual" in name]
        convert(tmp_path / f"td-{rest}", tmp_path / f"hf-{rest}", Options(verify=True))
        assert_same(hf_tensors(tmp_path / f"hf-{rest}"), original if rest == "carry" else language)
    convert(tmp_path / "td-carry", tmp_path / "without", Options(rest="drop"))
    assert_same(hf_tensors(tmp_path / "without"), language)


@pytest.mark.parametrize("model", VISION)
def test_another_tower_comes_from_the_original(model: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    """Training knows the language model only; the tower is taken from the folder that --hf-config names."""
    source = source_of(model, shared_tiny)
    original = hf_tensors(source)
    write_torch_dist(tmp_path / "td", under_one_name(expected_moe(config_of(source), original), 0))
    problem = refused(tmp_path / "td", tmp_path / "hf", Options(hf_config=source))
    assert [finding.code for finding in problem.findings] == ["rest-undecided"]
    convert(tmp_path / "td", tmp_path / "hf", Options(hf_config=source, rest="carry", max_shard_size=20_000))
    assert_same(hf_tensors(tmp_path / "hf"), original)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == original.keys()
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in original.values())
    convert(tmp_path / "td", tmp_path / "text", Options(hf_config=source, rest="drop"))
    language = {name: tensor for name, tensor in original.items() if not name.startswith("model.visual.")}
    assert_same(hf_tensors(tmp_path / "text"), language)


@pytest.mark.parametrize("form", ["gdn-slime", "dsa-slime"])
def test_a_layout_is_read_from_the_keys(form: str, shared_tiny: Tiny, tmp_path: Path) -> None:
    """Nothing but the names says which tool wrote a directory; a wrong layout would be another model."""
    source = shared_tiny("qwen3_5_text" if form == "gdn-slime" else "deepseek_v32")
    for name, variants in (("theirs", FORMS[form][0]["variants"]), ("ours", {})):
        convert(source, tmp_path / name, Options(variants=variants))
        convert(tmp_path / name, tmp_path / f"{name}-hf", Options(hf_config=source))
    assert tree(tmp_path / "theirs-hf") == tree(tmp_path / "ours-hf")
    assert megatron_tensors(tmp_path / "theirs").keys() != megatron_tensors(tmp_path / "ours").keys()
