"""Read a Hugging Face folder, and the few facts of its config.json that the oracle needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from . import hybrid, ling, oss, step

HfConfig = dict[str, Any]
Tensors = dict[str, torch.Tensor]

# Families whose MTP layers continue the decoder's numbering: model.layers.{N}, {N + 1}, ...
NEXTN = ("glm4_moe", "deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", *step.STEP)
# Families with gated delta nets; their one MTP layer stands apart as mtp.*.
DELTA_NET = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
ZERO_CENTRED = (*DELTA_NET, *step.STEP)  # norms that multiply by 1 + w
QWEN_MOE = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text", *oss.OSS)


def stored_config(folder: str | Path) -> HfConfig:
    """The folder's config.json."""
    config: HfConfig = json.loads((Path(folder) / "config.json").read_text())
    return config


def read_config(folder: str | Path) -> HfConfig:
    """The folder's config.json, that of families with words of their own in other families' words."""
    config = stored_config(folder)
    if step.is_step(config):
        return step.plain_config(config)
    if oss.is_oss(config):
        return oss.plain_config(config)
    return ling.glm_config(config) if ling.is_ling(config) else config


def read_tensors(folder: str | Path) -> Tensors:
    """All tensors of the folder, those of families with words of their own in other families' words."""
    config, tensors = stored_config(folder), stored_tensors(folder)
    if step.is_step(config):
        return step.plain_tensors(tensors)
    if oss.is_oss(config):
        return oss.plain_tensors(tensors)
    if hybrid.is_hybrid(config):
        return hybrid.named_outside(tensors)
    return ling.glm_tensors(config, tensors) if ling.is_ling(config) else tensors


def stored_tensors(folder: str | Path) -> Tensors:
    """All tensors of the folder's safetensors files (those the index names, or every file without an index)."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors: Tensors = {}
    for file in files:
        tensors.update(load_file(file))
    return tensors


def head_dim(config: HfConfig) -> int:
    """The size of one attention head: the explicit one, else 128 for Qwen3 (its class default), else hidden / heads."""
    if explicit := config.get("head_dim"):
        return int(explicit)
    if config["model_type"] == "qwen3" and "head_dim" not in config:
        return 128
    if is_latent(config):
        return int(config["qk_nope_head_dim"])
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def query_groups(config: HfConfig) -> int:
    """The number of key/value heads."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def is_tied(config: HfConfig) -> bool:
    """Whether the output layer is the embedding (transformers' default is untied for all families here)."""
    return bool(config.get("tie_word_embeddings", False))


def mtp_layers(config: HfConfig) -> int:
    """The number of multi-token prediction layers the config declares, in the families that have any."""
    if config["model_type"] not in ("mimo", *NEXTN, *DELTA_NET, *ling.LING):
        return 0
    return int(config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0)


def is_latent(config: HfConfig) -> bool:
    """Whether the attention is latent (MLA)."""
    return "kv_lora_rank" in config


def is_sparse(config: HfConfig) -> bool:
    """Whether an indexer chooses what attention sees (DSA)."""
    return "index_topk" in config


def only_te_names(config: HfConfig) -> bool:
    """Whether Megatron has the family's modules in its TransformerEngine specs only."""
    return is_sparse(config) or config["model_type"] in (*ZERO_CENTRED, *hybrid.HYBRID)


def num_experts(config: HfConfig) -> int:
    """The number of routed experts, 0 for a dense model."""
    return int(config.get("num_experts") or config.get("n_routed_experts") or 0)


def moe_layers(config: HfConfig) -> frozenset[int]:
    """The decoder layers with experts."""
    layers = range(config["num_hidden_layers"])
    if hybrid.is_hybrid(config):
        return frozenset(i for i, kind in enumerate(config["hybrid_override_pattern"]) if kind == "E")
    if config["model_type"] in QWEN_MOE:
        dense, step = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step") or 1
        return frozenset(i for i in layers if i not in dense and (i + 1) % step == 0)
    if num_experts(config):
        return frozenset(layers[config["first_k_dense_replace"] :])
    return frozenset()


def linear_layers(config: HfConfig) -> frozenset[int]:
    """The decoder layers with a gated delta net instead of attention."""
    types = config.get("layer_types") or ()
    return frozenset(i for i, kind in enumerate(types) if kind == "linear_attention")


def delta_net_sizes(config: HfConfig) -> tuple[int, ...]:
    """Rows of query, key, value, gate, beta and alpha in Megatron's joint projection of a delta net."""
    heads = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    return keys, keys, values, values, heads, heads


def rope_parameters(config: HfConfig) -> dict[str, Any]:
    """Rotary parameters in one shape, from the new `rope_parameters` or the old `rope_theta` + `rope_scaling`."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": config.get("rope_theta", 10000.0)}
    for source in (config.get("rope_scaling"), config.get("rope_parameters")):
        if source:
            renamed = {"rope_type" if key == "type" else key: value for key, value in source.items()}
            found.update(renamed)
    return found
