"""Read a Hugging Face folder, and the few facts of its config.json that the oracle needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

HfConfig = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def read_config(folder: str | Path) -> HfConfig:
    """The folder's config.json."""
    config: HfConfig = json.loads((Path(folder) / "config.json").read_text())
    return config


def read_tensors(folder: str | Path) -> Tensors:
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
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def query_groups(config: HfConfig) -> int:
    """The number of key/value heads."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def is_tied(config: HfConfig) -> bool:
    """Whether the output layer is the embedding (transformers' default is untied for all families here)."""
    return bool(config.get("tie_word_embeddings", False))


def mtp_layers(config: HfConfig) -> int:
    """The number of multi-token prediction layers the config declares; only MiMo has any among the dense families."""
    return int(config.get("num_nextn_predict_layers") or 0) if config["model_type"] == "mimo" else 0


def rope_parameters(config: HfConfig) -> dict[str, Any]:
    """Rotary parameters in one shape, from the new `rope_parameters` or the old `rope_theta` + `rope_scaling`."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": config.get("rope_theta", 10000.0)}
    for source in (config.get("rope_scaling"), config.get("rope_parameters")):
        if source:
            renamed = {"rope_type" if key == "type" else key: value for key, value in source.items()}
            found.update(renamed)
    return found
