"""Nemotron-H (nemotron_h) against an independent statement of every tensor: splits and reshapes, not block lists.

Names and order of the pieces are those of megatron-core's MambaMixer.sharded_state_dict. That real Megatron reads the decoder
so is shown in tests/oracles; for the MTP layers, which no version here builds, this is the proof.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.errors import CkptError
from tests.checkpoints import Tensors, assert_same, changed_config, hf_tensors, megatron_tensors

from .test_ling_and_step import grouped, random

H, D, HEADS, GROUPS, V = 16, 4, 4, 2, 40
MAMBA_HEADS, MAMBA_DIM, STATE, MAMBA_GROUPS, KERNEL = 6, 4, 5, 3, 4
INNER, SHARED = MAMBA_HEADS * MAMBA_DIM, MAMBA_GROUPS * STATE
F, MOE_F, SHARED_F, LATENT, EXPERTS = 24, 10, 14, 8, 12
PATTERN, MTP = "ME*-M", "*E"
CONFIG: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "conv_kernel": KERNEL,
    "head_dim": D,
    "hidden_size": H,
    "hybrid_override_pattern": PATTERN,
    "intermediate_size": F,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": MAMBA_DIM,
    "mamba_num_heads": MAMBA_HEADS,
    "max_position_embeddings": 64,
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": MOE_F,
    "moe_latent_size": LATENT,
    "moe_shared_expert_intermediate_size": SHARED_F,
    "mtp_hybrid_override_pattern": MTP,
    "n_groups": MAMBA_GROUPS,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": len(PATTERN),
    "num_key_value_heads": GROUPS,
    "num_nextn_predict_layers": 2,
    "routed_scaling_factor": 5.0,
    "ssm_state_size": STATE,
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": V,
}


def layer(at: str, kind: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (H,)}
    if kind == "M":
        filters = INNER + 2 * SHARED
        shapes |= {"mixer.in_proj.weight": (INNER + filters + MAMBA_HEADS, H), "mixer.out_proj.weight": (H, INNER)}
        shapes |= {"mixer.conv1d.weight": (filters, 1, KERNEL), "mixer.conv1d.bias": (filters,)}
        shapes |= {f"mixer.{name}": (MAMBA_HEADS,) for name in ("A_log", "D", "dt_bias")}
        shapes |= {"mixer.norm.weight": (INNER,)}
    elif kind == "*":
        shapes |= {"mixer.q_proj.weight": (HEADS * D, H), "mixer.o_proj.weight": (H, HEADS * D)}
        shapes |= {f"mixer.{name}_proj.weight": (GROUPS * D, H) for name in "kv"}
    elif kind == "-":
        shapes |= {"mixer.up_proj.weight": (F, H), "mixer.down_proj.weight": (H, F)}
    else:
        shapes |= {"mixer.gate.weight": (EXPERTS, H), "mixer.gate.e_score_correction_bias": (EXPERTS,)}
        shapes |= {"mixer.fc1_latent_proj.weight": (LATENT, H), "mixer.fc2_latent_proj.weight": (H, LATENT)}
        shapes |= {f"mixer.experts.{e}.up_proj.weight": (MOE_F, LATENT) for e in range(EXPERTS)}
        shapes |= {f"mixer.experts.{e}.down_proj.weight": (LATENT, MOE_F) for e in range(EXPERTS)}
        shapes |= {"mixer.shared_experts.up_proj.weight": (SHARED_F, H)}
        shapes |= {"mixer.shared_experts.down_proj.weight": (H, SHARED_F)}
    return {at + name: shape for name, shape in shapes.items()}


def tensors() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"backbone.embeddings.weight": (V, H), "lm_head.weight": (V, H)}
    shapes["backbone.norm_f.weight"] = (H,)
    for i, kind in enumerate(PATTERN):
        shapes |= layer(f"backbone.layers.{i}.", kind)
    for i, kind in enumerate(MTP * 2):
        shapes |= layer(f"mtp.layers.{i}.", kind)
    for i in (0, 2):
        shapes |= {f"mtp.layers.{i}.{name}.weight": (H,) for name in ("enorm", "hnorm")}
        shapes |= {f"mtp.layers.{i}.eh_proj.weight": (H, 2 * H), f"mtp.layers.{i + 1}.final_layernorm.weight": (H,)}
    kept = ("e_score_correction_bias", "A_log", ".D", "dt_bias")
    return {n: random(n, s, torch.float32 if n.endswith(kept) else torch.bfloat16) for n, s in shapes.items()}


def expected_layer(t: Tensors, hf: str, at: str, kind: str) -> Tensors:
    norm, x = t[f"{hf}norm.weight"], f"{hf}mixer."
    if kind == "M":
        made = {f"{at}mixer.in_proj.layer_norm_weight": norm}
        joint = t[f"{x}in_proj.weight"].split([INNER, INNER, SHARED, SHARED, MAMBA_HEADS])
        made |= {
            f"{at}mixer.in_proj.weight.{name}": part
            for name, part in zip(["z", "x", "B", "C", "dt"], joint, strict=True)
        }
        for each in ("weight", "bias"):
            parts = t[f"{x}conv1d.{each}"].split([INNER, SHARED, SHARED])
            made |= {f"{at}mixer.conv1d.{each}.{name}": part for name, part in zip("xBC", parts, strict=True)}
        return made | {f"{at}mixer.{n}": t[x + n] for n in ("A_log", "D", "dt_bias", "norm.weight", "out_proj.weight")}
    if kind == "*":
        q, k, v = (t[f"{x}{name}_proj.weight"] for name in "qkv")
        return {
            f"{at}self_attention.linear_qkv.layer_norm_weight": norm,
            f"{at}self_attention.linear_qkv.weight": grouped(q, k, v, GROUPS),
            f"{at}self_attention.linear_proj.weight": t[f"{x}o_proj.weight"],
        }
    if kind == "-":
        up, down = t[f"{x}up_proj.weight"], t[f"{x}down_proj.weight"]
        names = ("linear_fc1.layer_norm_weight", "linear_fc1.weight", "linear_fc2.weight")
        return {f"{at}mlp.{name}": part for name, part in zip(names, (norm, up, down), strict=True)}
    up, down = ([t[f"{x}experts.{e}.{p}_proj.weight"] for e in range(EXPERTS)] for p in ("up", "down"))
    return {
        f"{at}pre_mlp_layernorm.weight": norm,
        f"{at}mlp.linear_fc1.layer_norm_weight": norm,
        f"{at}mlp.router.weight": t[f"{x}gate.weight"],
        f"{at}mlp.router.expert_bias": t[f"{x}gate.e_score_correction_bias"],
        f"{at}mlp.fc1_latent_proj.weight": t[f"{x}fc1_latent_proj.weight"],
        f"{at}mlp.fc2_latent_proj.weight": t[f"{x}fc2_latent_proj.weight"],
        f"{at}mlp.experts.experts.linear_fc1.weight": torch.stack(up),
        f"{at}mlp.experts.experts.linear_fc2.weight": torch.stack(down),
        f"{at}mlp.shared_experts.linear_fc1.weight": t[f"{x}shared_experts.up_proj.weight"],
        f"{at}mlp.shared_experts.linear_fc2.weight": t[f"{x}shared_experts.down_proj.weight"],
    }


def expected(t: Tensors) -> Tensors:
    zeros = torch.zeros(128 - V, H, dtype=torch.bfloat16)
    found = {
        "embedding.word_embeddings.weight": torch.cat([t["backbone.embeddings.weight"], zeros]),
        "output_layer.weight": torch.cat([t["lm_head.weight"], zeros]),
        "decoder.final_norm.weight": t["backbone.norm_f.weight"],
    }
    for i, kind in enumerate(PATTERN):
        found |= expected_layer(t, f"backbone.layers.{i}.", f"decoder.layers.{i}.", kind)
    for i in range(4):
        found |= expected_layer(
            t, f"mtp.layers.{i}.", f"mtp.layers.{i // 2}.mtp_model_layer.layers.{i % 2}.", MTP[i % 2]
        )
    for k in (0, 1):
        for name in ("enorm", "hnorm", "eh_proj"):
            found[f"mtp.layers.{k}.{name}.weight"] = t[f"mtp.layers.{2 * k}.{name}.weight"]
        found[f"mtp.layers.{k}.final_layernorm.weight"] = t[f"mtp.layers.{2 * k + 1}.final_layernorm.weight"]
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_every_tensor_is_where_the_statement_says_and_comes_back(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "td", Options(verify=True)).result
    assert (result.mtp_written, result.layout) == (2, "per-layer")
    assert_same(megatron_tensors(tmp_path / "td"), expected(tensors()))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "back"), tensors())


def test_without_its_mtp_layers(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "td", Options(mtp="drop"))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "back"), {n: t for n, t in tensors().items() if not n.startswith("mtp.")})


def test_the_pattern_as_a_list_of_words(source: Path, tmp_path: Path) -> None:
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    with changed_config(source) as config:
        config["layers_block_type"] = [words[kind] for kind in config.pop("hybrid_override_pattern")]
        config["mtp_layers_block_type"] = [words[kind] for kind in config.pop("mtp_hybrid_override_pattern")]
    convert(source, tmp_path / "td", Options())
    assert_same(megatron_tensors(tmp_path / "td"), expected(tensors()))


WRONG = [("hybrid_override_pattern", "ME*"), ("hybrid_override_pattern", "ME*?M"), ("mlp_hidden_act", "silu")]
WRONG += [("use_conv_bias", None), ("mamba_proj_bias", True), ("mtp_hybrid_override_pattern", None)]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_config_that_cannot_be_is_refused_by_its_field(field: str, value: Any, source: Path, tmp_path: Path) -> None:
    with changed_config(source) as config:
        config[field] = value
    with pytest.raises(CkptError, match=field):
        convert(source, tmp_path / "td", Options())
