"""Multimodal releases: the language model converts as its text-only sister does, the other towers travel.

Every folder is what transformers' own class saves of a tiny model, under the names that it gives a release. Kimi-K2.5's class
reads the release's names and writes others, so there the names are put together from those of the language model's class, and
the class has to load them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.convert.options import CARRY
from ckpt_tools.errors import CkptError
from ckpt_tools.families import multimodal
from ckpt_tools.inspection import inspect_checkpoint
from tests.checkpoints import Tensors, assert_same, changed_config, hf_tensors, megatron_tensors

Config = dict[str, Any]

TEXT: Config = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_section": [2, 1, 1], "rope_type": "default"},
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 64,
}
QWEN3 = TEXT | {"attention_bias": False, "head_dim": 8}
EXPERTS: Config = {"moe_intermediate_size": 12, "norm_topk_prob": True, "num_experts_per_tok": 2}
SOFTMAX = EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 4}
SIGMOID = EXPERTS | {
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 1.5,
    "topk_group": 1,
}
GLM = TEXT | {"attention_bias": True, "head_dim": 8, "partial_rotary_factor": 0.5}
LATENT = {
    "attention_bias": False,
    "kv_lora_rank": 12,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "rope_scaling": None,
    "v_head_dim": 6,
}
STEP: Config = {name: value for name, value in TEXT.items() if name not in ("num_key_value_heads", "rope_scaling")} | {
    "attention_other_setting": {"head_dim": 8, "num_attention_groups": 2, "num_attention_heads": 6},
    "head_dim": 8,
    "layer_types": ["full_attention", "sliding_attention"],
    "moe_intermediate_size": 12,
    "moe_layers_enum": "1",
    "moe_num_experts": 4,
    "moe_router_scaling_factor": 3.0,
    "moe_top_k": 2,
    "norm_expert_weight": True,
    "num_attention_groups": 2,
    "num_nextn_predict_layers": 0,
    "rope_theta": [10000.0, 10000.0],
    "share_expert_dim": 12,
    "sliding_window": 8,
}
VISION: Config = {
    "depth": 1,
    "hidden_size": 16,
    "in_channels": 3,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
DEEPSTACK = VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
CLIP = {"heads": 2, "image_size": 28, "layers": 1, "mlp_ratio": 1.0, "patch_size": 14, "width": 8}
MOONVIT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 4,
    "pos_emb_height": 4,
    "pos_emb_time": 2,
    "pos_emb_width": 4,
}
QWEN2_VISION = {**VISION, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}

# model_type: the language model's own model_type and config, the vision tower's, fields of the wrapper.
RELEASES: dict[str, tuple[str, Config, Config]] = {
    "qwen2_vl": ("qwen2", TEXT, QWEN2_VISION),
    "qwen2_5_vl": ("qwen2", TEXT, VISION | {"fullatt_block_indexes": [0], "window_size": 8}),
    "qwen3_vl": ("qwen3", QWEN3, DEEPSTACK),
    "qwen3_vl_moe": ("qwen3_moe", QWEN3 | SOFTMAX, DEEPSTACK),
    "glm4v": ("glm4", GLM, VISION | {"image_size": 16}),
    "glm46v": ("glm4", GLM, VISION | {"image_size": 16}),
    "glm4v_moe": ("glm4_moe", GLM | SIGMOID | {"use_qk_norm": False}, VISION | {"image_size": 16}),
    "step3p7": ("step3p5", STEP, CLIP),
    "kimi_k25": ("deepseek_v3", TEXT | SIGMOID | LATENT, MOONVIT),
}
TEXT_TYPES = {"glm46v": "glm4v_text", "step3p7": "step3p5", "kimi_k25": "kimi_k2"}
VISION_TYPES = {"glm46v": "glm4v_vision"}
LANGUAGE_MODEL = {"kimi_k25": ("language_model.model.", "language_model.lm_head."), "qwen2_vl": ("model.", "lm_head.")}
LANGUAGE_MODEL |= {"qwen2_5_vl": ("model.", "lm_head."), "step3p7": ("model.", "lm_head.")}
TOWERS = ("model.visual.", "visual.", "vision_model.", "vit_large_projector.", "vision_tower.", "mm_projector.")


def config_of(model_type: str) -> Config:
    _, text, vision = RELEASES[model_type]
    text = text | {"model_type": TEXT_TYPES.get(model_type, f"{model_type}_text")}
    if model_type in VISION_TYPES:
        vision = vision | {"model_type": VISION_TYPES[model_type]}
    own: Config = {"projection_hidden_size": 16} if model_type == "kimi_k25" else {}
    return {"model_type": model_type, "text_config": text, "vision_config": vision, "tie_word_embeddings": False, **own}


def saved_by_its_class(model_type: str, folder: Path) -> Tensors:
    """What transformers writes for this config, every value different."""
    import transformers

    (folder / "config.json").write_text(json.dumps(config_of(model_type)))
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModelForImageTextToText.from_config(config).to(torch.bfloat16).save_pretrained(folder / "made")
    return {name: noise(name, tensor) for name, tensor in hf_tensors(folder / "made").items()}


def noise(name: str, tensor: torch.Tensor) -> torch.Tensor:
    values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(sum(map(ord, name)) + tensor.numel()))
    return values.to(torch.float32 if name.endswith(("correction_bias", "router_bias")) else torch.bfloat16)


def kimi(folder: Path) -> Tensors:
    """The language model's tensors as its own class names them, under Kimi's prefix, beside three of the other towers."""
    import transformers

    text = {name: value for name, value in config_of("kimi_k25")["text_config"].items() if name != "model_type"}
    config = transformers.AutoConfig.for_model("deepseek_v3", **text)
    with torch.random.fork_rng():
        transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder / "made")
    made = {f"language_model.{name}": noise(name, tensor) for name, tensor in hf_tensors(folder / "made").items()}
    towers = {
        "mm_projector.proj.0.weight": torch.ones(64, 64, dtype=torch.bfloat16),
        "vision_tower.encoder.blocks.0.norm0.weight": torch.ones(16, dtype=torch.bfloat16),
        "vision_tower.encoder.blocks.0.wo.weight": torch.ones(16, 16, dtype=torch.bfloat16),
    }
    return made | towers


def write(folder: Path, config: Config, tensors: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tensors]:
    """(model_type, folder, tensors) as released: Qwen3-VL's experts transposed, which its class undoes as it loads."""
    model_type, base = str(request.param), tmp_path_factory.mktemp("release")
    scratch = base / "scratch"
    scratch.mkdir()
    tensors = kimi(scratch) if model_type == "kimi_k25" else saved_by_its_class(model_type, scratch)
    if model_type == "qwen3_vl_moe":
        tensors = {n: t.mT.contiguous() if ".experts." in n else t for n, t in tensors.items()}
    return model_type, write(base / "hf", config_of(model_type), tensors), tensors


def plain(model_type: str, tensors: Tensors) -> Tensors:
    """The language model's tensors as its text-only sister names and lays them out."""
    model, head = LANGUAGE_MODEL.get(model_type, ("model.language_model.", "lm_head."))
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(TOWERS):
            continue
        inner = "model." + name.removeprefix(model) if name.startswith(model) else "lm_head." + name.removeprefix(head)
        at, packed, last = inner.partition(".experts.")
        if model_type == "qwen3_vl_moe" and packed:
            for e, each in enumerate(tensor.mT):
                parts = {"gate": each[:12], "up": each[12:]} if last == "gate_up_proj" else {"down": each}
                found |= {f"{at}.experts.{e}.{part}_proj.weight": t.contiguous() for part, t in parts.items()}
        else:
            found[inner] = tensor
    return found


def test_the_language_model_converts_as_its_text_only_sister(
    release: tuple[str, Path, Tensors], tmp_path: Path
) -> None:
    model_type, source, tensors = release
    sister, text, _ = RELEASES[model_type]
    alone = write(tmp_path / "alone", text | {"model_type": sister}, plain(model_type, tensors))
    convert(source, tmp_path / "td", Options(rest=CARRY, verify=True))
    convert(alone, tmp_path / "td-alone", Options(verify=True))
    assert_same(megatron_tensors(tmp_path / "td"), megatron_tensors(tmp_path / "td-alone"))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "back"), tensors)
    assert (tmp_path / "back" / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_other_towers_are_not_dropped_unasked(release: tuple[str, Path, Tensors], tmp_path: Path) -> None:
    _, source, tensors = release
    with pytest.raises(CkptError, match="--rest"):
        convert(source, tmp_path / "td", Options())
    found, findings = inspect_checkpoint(source)
    assert (found.tensors, [finding for finding in findings if finding.severity == "error"]) == (len(tensors), [])


def test_every_model_type_has_a_release() -> None:
    """Kimi-VL has no class in transformers; its names are those of Kimi-K2.5."""
    known = {model_type for family in multimodal.FAMILIES for model_type in family.model_types}
    assert known == RELEASES.keys() | {"kimi_vl"}


def test_kimis_class_reads_these_names(tmp_path: Path) -> None:
    import transformers

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    folder = write(tmp_path / "hf", config_of("kimi_k25"), kimi(scratch))
    loader: Any = transformers.AutoModelForImageTextToText
    _, info = loader.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not [name for name in info["missing_keys"] if "language_model" in name or name.startswith("lm_head")]


def test_experts_that_transformers_wrote(tmp_path: Path) -> None:
    """Packed and not transposed: shapes tell, since the names are the same."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    tensors = saved_by_its_class("qwen3_vl_moe", scratch)
    source = write(tmp_path / "hf", config_of("qwen3_vl_moe"), tensors)
    convert(source, tmp_path / "td", Options(rest=CARRY, verify=True))
    convert(tmp_path / "td", tmp_path / "back", Options(hf_config=source, rest=CARRY, verify=True))
    assert_same(hf_tensors(tmp_path / "back"), tensors)
    gate_up = tensors["model.language_model.layers.0.mlp.experts.gate_up_proj"]
    stored = megatron_tensors(tmp_path / "td")["decoder.layers.0.mlp.experts.experts.linear_fc1.weight"]
    assert torch.equal(stored, gate_up)


def test_another_language_model_is_refused_by_its_name(release: tuple[str, Path, Tensors], tmp_path: Path) -> None:
    model_type, _, tensors = release
    source = write(tmp_path / "hf", config_of(model_type), tensors)
    with changed_config(source) as config:
        config["text_config"]["model_type"] = "llama"
    with pytest.raises(CkptError, match=r"text_config\.model_type"):
        convert(source, tmp_path / "td", Options(rest=CARRY))
