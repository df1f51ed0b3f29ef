"""Tiny Hugging Face folders: the same small model in every family, with random weights that are all different."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file

from . import hybrid, ling, oss, step
from .hf import ZERO_CENTRED, HfConfig, Tensors, mtp_layers
from .shapes import model_shapes

# Families whose releases repeat the embedding and the head inside the MTP layer.
REPEATS_OUTER = ("deepseek_v3", "glm4_moe_lite")
NEXTN_COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}

# Families whose layers are stated on their own.
SHAPES = {
    "gpt_oss": oss.model_shapes,
    "nemotron_h": hybrid.model_shapes,
    "step3p5": step.model_shapes,
}


def tiny_tensors(config: HfConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """Random weights, each determined by its name and the seed; router biases are always fp32.

    Norms are around 1, those that multiply by 1 + w around 0.
    """
    if ling.is_ling(config):
        return ling.ling_tensors(tiny_tensors(ling.glm_config(config), dtype=dtype, seed=seed))
    centre = 0.0 if config["model_type"] in ZERO_CENTRED else 1.0
    shapes = SHAPES.get(config["model_type"], model_shapes)(config)
    tensors = {name: _random(name, shape, seed, centre) for name, shape in shapes.items()}
    biases = ("correction_bias", "router_bias")
    tensors = {name: t if name.endswith(biases) else t.to(dtype) for name, t in tensors.items()}
    if step.is_step(config):
        ends = (f"model.layers.{config['num_hidden_layers'] + i}{step.COPY}" for i in range(mtp_layers(config)))
        tensors |= {name: tensors["lm_head.weight"].clone() for name in ends}
    if config["model_type"] in REPEATS_OUTER:
        for i in range(mtp_layers(config)):
            at = f"model.layers.{config['num_hidden_layers'] + i}."
            tensors |= {at + name: tensors[original].clone() for name, original in NEXTN_COPIES.items()}
    return tensors


def write_folder(folder: Path, config: HfConfig, tensors: Tensors) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def _random(name: str, shape: tuple[int, ...], seed: int, norm_centre: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    values = torch.randn(shape, generator=generator) * 0.1
    if name.endswith("linear_attn.norm.weight"):
        return values + 1.0
    return values + norm_centre if "norm" in name else values
