"""Ling and Ring 2.0 (bailing_moe) in the words of GLM-4.5, and back.

Its published code (inclusionAI/Ling-V2, modeling_bailing_moe_v2.py) computes what GLM-4.5's does: norms of q and k before
half of each head rotates, a sigmoid router with a bias and groups, a shared expert, an MTP layer that reads
[embedding, hidden]. transformers says so too: it loads a model of these names, `sarvam_moe`, into its GLM-4.5 class. Only
names differ, and q, k and v are one tensor: all of q, then all of k, then all of v.
"""

from __future__ import annotations

from typing import Any

import torch

LING = ("bailing_moe", "bailing_moe_v2")
FIELDS = {
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "use_qkv_bias": "attention_bias",
}
NAMES = {
    "model.word_embeddings.": "model.embed_tokens.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
    ".final_layernorm.": ".shared_head.norm.",
}
JOINT, APART = ".attention.query_key_value.", tuple(f".self_attn.{part}_proj." for part in "qkv")

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def is_ling(config: Config) -> bool:
    """Whether a config is one of Ling's own."""
    return config["model_type"] in LING


def glm_config(config: Config) -> Config:
    """A Ling config as one of GLM-4.5."""
    return {FIELDS.get(name, name): value for name, value in config.items()} | {"model_type": "glm4_moe"}


def glm_tensors(config: Config, tensors: Tensors) -> Tensors:
    """Ling's tensors under GLM-4.5's names."""
    size = config["head_dim"]
    rows = [config["num_attention_heads"] * size, *[config["num_key_value_heads"] * size] * 2]
    found: Tensors = {}
    for name, tensor in tensors.items():
        if JOINT in name:
            found |= {name.replace(JOINT, part): t for part, t in zip(APART, tensor.split(rows), strict=True)}
        else:
            found[_renamed(name, NAMES)] = tensor
    return found


def ling_tensors(tensors: Tensors) -> Tensors:
    """GLM-4.5's tensors under Ling's names."""
    back = {glm: ling for ling, glm in NAMES.items()}
    found: Tensors = {}
    for name, tensor in tensors.items():
        if APART[0] in name:
            parts = [tensors[name.replace(APART[0], part)] for part in APART]
            found[name.replace(APART[0], JOINT)] = torch.cat(parts)
        elif not any(part in name for part in APART):
            found[_renamed(name, back)] = tensor
    return found


def _renamed(name: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        name = name.replace(old, new)
    return name
