"""Tiny Hugging Face folders: the same small model in every family, with random weights that are all different."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .hf import (
    DELTA_NET,
    NEXTN,
    HfConfig,
    Tensors,
    delta_net_sizes,
    head_dim,
    is_latent,
    is_sparse,
    is_tied,
    linear_layers,
    moe_layers,
    mtp_layers,
    num_experts,
    query_groups,
)

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
NEXTN_FIELDS: HfConfig = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 1.5,
    "topk_group": 1,
}
LATENT_FIELDS: HfConfig = {
    "attention_bias": False,
    "kv_lora_rank": 16,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6,  # transformers' norms inside latent attention know no other
    "rope_interleave": True,
    "v_head_dim": 12,
}
INDEXER_FIELDS: HfConfig = {"index_head_dim": 20, "index_n_heads": 3, "index_topk": 64}
DELTA_NET_FIELDS: HfConfig = {
    "attention_bias": False,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 20,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
}
QWEN_MOE_FIELDS: HfConfig = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
GATED_EXPERT: HfConfig = {"shared_expert_intermediate_size": 40}
OWN_FIELDS: dict[str, HfConfig] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "qwen3": {"attention_bias": False, "head_dim": 32},
    "mimo": {"num_nextn_predict_layers": 1},
    "qwen3_moe": QWEN_MOE_FIELDS | {"attention_bias": False, "head_dim": 32},
    "glm4_moe": NEXTN_FIELDS
    | {"attention_bias": True, "head_dim": 24, "partial_rotary_factor": 0.5, "use_qk_norm": True},
    "deepseek_v3": NEXTN_FIELDS
    | LATENT_FIELDS
    | {"n_group": 4, "n_routed_experts": 8, "num_experts_per_tok": 4, "routed_scaling_factor": 2.5, "topk_group": 2},
    "glm4_moe_lite": NEXTN_FIELDS | LATENT_FIELDS | {"v_head_dim": 20},
    "deepseek_v32": NEXTN_FIELDS | LATENT_FIELDS | INDEXER_FIELDS,
    "glm_moe_dsa": NEXTN_FIELDS | LATENT_FIELDS | INDEXER_FIELDS,
    "qwen3_next": DELTA_NET_FIELDS | QWEN_MOE_FIELDS | GATED_EXPERT | {"num_nextn_predict_layers": 1},
    "qwen3_5_text": DELTA_NET_FIELDS | {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe_text": DELTA_NET_FIELDS | QWEN_MOE_FIELDS | GATED_EXPERT | {"mtp_num_hidden_layers": 1},
}
# Families whose releases repeat the embedding and the head inside the MTP layer.
REPEATS_OUTER = ("deepseek_v3", "glm4_moe_lite")

LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
# What a save step needs to write a training iteration of each kind (see run.py).
TRAINING: dict[str, dict[str, Any]] = {
    "distributed": {
        "content_metadata": {"singleton_local_shards": False, "chained_optim_avoid_prefix": True},
        "training": {"iteration": 7, "optimizer": "distributed", "rng": True, "args": {"seed": 3}},
    },
    "fully-reshardable": {
        "content_metadata": {"non_homogeneous_layers": True, "distrib_optim_sharding_type": "fully_reshardable"},
        "training": {"iteration": 7, "optimizer": "distributed", "rng": True},
        "first_stage_layers": 3,
    },
    "adam": {"training": {"iteration": 7, "optimizer": "adam", "rng": True}},
}


def tiny_config(family: str, **overrides: Any) -> HfConfig:
    """A config.json of hidden size 64, 4 layers, 4 heads, 2 key/value heads and 96 words.

    Qwen3's heads are wider than hidden size / heads; families with MTP have one layer of it; those with experts have 4
    to 8, the first layer being dense except in Qwen3.
    """
    config: HfConfig = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return config | OWN_FIELDS.get(family, {}) | overrides


def tiny_tensors(config: HfConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """Random weights, each determined by its name and the seed; router biases are always fp32.

    Norms are around 1, those that multiply by 1 + w around 0.
    """
    shapes = _outer_shapes(config)
    copies: dict[str, str] = {}
    sparse, linear = moe_layers(config), linear_layers(config)
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer_shapes(config, f"model.layers.{i}.", sparse=i in sparse, linear=i in linear)
    for i in range(mtp_layers(config)):
        if config["model_type"] in DELTA_NET:
            shapes |= _qwen_mtp_shapes(config, i)
        elif config["model_type"] in NEXTN:
            prefix = f"model.layers.{config['num_hidden_layers'] + i}."
            shapes |= _nextn_shapes(config, prefix)
            copies |= {prefix + name: original for name, original in NEXTN_COPIES.items()}
        else:
            shapes |= _mtp_shapes(config, f"model.mtp_layers.{i}.")
    centre = 0.0 if config["model_type"] in DELTA_NET else 1.0
    tensors = {name: _random(name, shape, seed, centre) for name, shape in shapes.items()}
    tensors = {name: t if name.endswith("correction_bias") else t.to(dtype) for name, t in tensors.items()}
    if config["model_type"] in REPEATS_OUTER:
        tensors |= {name: tensors[original].clone() for name, original in copies.items()}
    return tensors


def write_folder(folder: Path, config: HfConfig, tensors: Tensors) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def _outer_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not is_tied(config):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _layer_shapes(
    config: HfConfig, prefix: str, *, sparse: bool = False, linear: bool = False
) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if linear:
        shapes |= _delta_net_shapes(config)
    else:
        shapes |= _latent_attention_shapes(config) if is_latent(config) else _attention_shapes(config)
    shapes |= _moe_shapes(config) if sparse else _mlp_shapes("mlp.", hidden, config["intermediate_size"])
    return {prefix + name: shape for name, shape in shapes.items()}


def _attention_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    hidden, size, model_type = config["hidden_size"], head_dim(config), config["model_type"]
    rows = {"q": config["num_attention_heads"] * size, "k": query_groups(config) * size}
    rows["v"] = rows["k"]
    shapes: dict[str, tuple[int, ...]] = {"self_attn.o_proj.weight": (hidden, rows["q"])}
    if model_type in DELTA_NET:
        rows["q"] *= 2
    for part, count in rows.items():
        shapes[f"self_attn.{part}_proj.weight"] = (count, hidden)
        if model_type in ("qwen2", "mimo") or config.get("attention_bias"):
            shapes[f"self_attn.{part}_proj.bias"] = (count,)
    if model_type in ("qwen3", "qwen3_moe", *DELTA_NET) or config.get("use_qk_norm"):
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    return shapes


def _latent_attention_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + value), rank),
        "o_proj.weight": (hidden, heads * value),
    }
    if q_rank := config["q_lora_rank"]:
        shapes |= {"q_a_proj.weight": (q_rank, hidden), "q_a_layernorm.weight": (q_rank,)}
        shapes |= {"q_b_proj.weight": (heads * (nope + rope), q_rank)}
    else:
        shapes |= {"q_proj.weight": (heads * (nope + rope), hidden)}
    if is_sparse(config):
        index_heads, size = config["index_n_heads"], config["index_head_dim"]
        indexer: dict[str, tuple[int, ...]] = {
            "wq_b.weight": (index_heads * size, config["q_lora_rank"]),
            "wk.weight": (size, hidden),
            "weights_proj.weight": (index_heads, hidden),
            "k_norm.weight": (size,),
            "k_norm.bias": (size,),
        }
        shapes |= {f"indexer.{name}": shape for name, shape in indexer.items()}
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _delta_net_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads, size = config["hidden_size"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys, _, values, *_ = delta_net_sizes(config)
    shapes: dict[str, tuple[int, ...]] = {
        "A_log": (heads,),
        "conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
        "dt_bias": (heads,),
        "norm.weight": (size,),
        "out_proj.weight": (hidden, values),
    }
    if config["model_type"] == "qwen3_next":
        rows = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads}
    else:
        rows = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
    shapes |= {f"in_proj_{name}.weight": (count, hidden) for name, count in rows.items()}
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}


def _mlp_shapes(prefix: str, hidden: int, ffn: int) -> dict[str, tuple[int, ...]]:
    rows = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    return {f"{prefix}{part}_proj.weight": shape for part, shape in rows.items()}


def _moe_shapes(config: HfConfig) -> dict[str, tuple[int, ...]]:
    hidden, ffn, experts = config["hidden_size"], config["moe_intermediate_size"], num_experts(config)
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (experts, hidden)}
    if config["model_type"] == "qwen3_5_moe_text":
        shapes["mlp.experts.gate_up_proj"] = (experts, 2 * ffn, hidden)
        shapes["mlp.experts.down_proj"] = (experts, hidden, ffn)
    else:
        for e in range(experts):
            shapes |= _mlp_shapes(f"mlp.experts.{e}.", hidden, ffn)
    if shared := config.get("shared_expert_intermediate_size"):
        shapes |= _mlp_shapes("mlp.shared_expert.", hidden, shared)
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    if config["model_type"] in NEXTN:
        shapes["mlp.gate.e_score_correction_bias"] = (experts,)
        shapes |= _mlp_shapes("mlp.shared_experts.", hidden, config["n_shared_experts"] * ffn)
    return shapes


NEXTN_COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}


def _nextn_shapes(config: HfConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")
    }
    shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, prefix, sparse=True)


def _mtp_shapes(config: HfConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}{name}.weight": (hidden,) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    shapes[prefix + "input_proj.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, prefix)


def _qwen_mtp_shapes(config: HfConfig, index: int) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"mtp.{name}.weight": (hidden,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, f"mtp.layers.{index}.", sparse=num_experts(config) > 0)


def _random(name: str, shape: tuple[int, ...], seed: int, norm_centre: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    values = torch.randn(shape, generator=generator) * 0.1
    if name.endswith("linear_attn.norm.weight"):
        return values + 1.0
    return values + norm_centre if "norm" in name else values
