"""Names and shapes of a model, as transformers writes them, in the layouts of releases."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .forms import PACKED, STYLE_VERSION, Config, Family, Shapes, Sizes


def to_v5(config: Config) -> Config:
    """Restate a "v4" config in the style of transformers 5: ``dtype`` and ``rope_parameters``, no older spellings."""
    new = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    scaling: Config = config.get("rope_scaling") or {"rope_type": "default"}
    new["rope_parameters"] = dict(sorted({**scaling, "rope_theta": config["rope_theta"]}.items()))
    new["dtype"] = config["torch_dtype"]
    if "partial_rotary_factor" in new:
        new["rope_parameters"]["partial_rotary_factor"] = new.pop("partial_rotary_factor")
    if "max_window_layers" in config:
        new["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
        new["sliding_window"] = None
    if config["model_type"] == "qwen3_moe":
        new["num_local_experts"] = new.pop("num_experts")
    if config["model_type"] == "glm4_moe_lite":
        dense = new.pop("first_k_dense_replace")
        new["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in range(config["num_hidden_layers"])]
    return new


def release_config(family: Family, sizes: Sizes, dtype: str, tied: bool, style: str, extra: Config | None) -> Config:
    """The whole config.json of a tiny release, keys sorted as in most releases."""
    config = family.config(sizes) | {"tie_word_embeddings": tied, "torch_dtype": dtype}
    if style == "v5":
        config = to_v5(config)
    config["transformers_version"] = STYLE_VERSION[style]
    config = dict(sorted((config | (extra or {})).items()))
    return config if family.wrapper is None else family.wrapper(config, sizes)


def oracle_shapes(family: Family, config: Config) -> Shapes:
    """Names and shapes that transformers' own class writes for this config (tied tensors once, as it does)."""
    import transformers
    from transformers import AutoConfig, PreTrainedModel
    from transformers.utils import logging

    hide_progress: Callable[[], None] = logging.disable_progress_bar
    hide_progress()
    build: Callable[[Any], PreTrainedModel] = getattr(transformers, family.auto).from_config
    known = {key: value for key, value in config.items() if key not in ("model_type", "auto_map", "architectures")}
    with torch.random.fork_rng():
        model = build(AutoConfig.for_model(family.loader, **known))
    shapes: Shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="pt") as stored:
                shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def mtp_shapes(family: Family, sizes: Sizes, decoder: Shapes, copied: bool) -> tuple[Shapes, dict[str, str]]:
    """Names and shapes of all MTP layers, and the names among them that copy another tensor."""
    shapes: Shapes = {}
    copies: dict[str, str] = {}
    if family.mtp is None or not sizes.mtp:
        return shapes, copies
    repeated = richest_layer(family.prefix, sizes, decoder)
    for i in range(sizes.mtp):
        index = {"i": i, "n": sizes.layers + i}
        body = family.mtp.body.format(**index)
        shapes |= {body + name: shape for name, shape in repeated.items()}
        shapes |= {name.format(**index): tuple(map(sizes.width, dims)) for name, dims in family.mtp.extra.items()}
        if copied:
            copies |= {name.format(**index): source for name, source in family.mtp.copies.items()}
    return shapes, copies


def richest_layer(prefix: str, sizes: Sizes, decoder: Shapes) -> Shapes:
    """The last decoder layer with attention and the most tensors, by names below the layer's own prefix."""
    layers = [f"{prefix}layers.{i}." for i in range(sizes.layers)]
    found = [{n[len(at) :]: shape for n, shape in decoder.items() if n.startswith(at)} for at in layers]
    return max(reversed(found), key=lambda layer: (any(name.startswith("self_attn.") for name in layer), len(layer)))


def unpacked(shapes: Shapes) -> Shapes:
    """Experts as one matrix each."""
    found: Shapes = {}
    for name, shape in shapes.items():
        at, _, last = name.rpartition(".")
        if last == "gate_up_proj" and at.endswith(".experts"):
            size = (shape[1] // 2, shape[2])
            found |= {f"{at}.{e}.{part}_proj.weight": size for e in range(shape[0]) for part in ("gate", "up")}
        elif last == "down_proj" and at.endswith(".experts"):
            found |= {f"{at}.{e}.down_proj.weight": shape[1:] for e in range(shape[0])}
        else:
            found[name] = shape
    return found


def packed(shapes: Shapes) -> Shapes:
    """Experts of a layer in two tensors, the expert first: ``gate_up_proj`` and ``down_proj``, no ``.weight``."""
    found: Shapes = {}
    for name, shape in shapes.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if match is None:
            found[name] = shape
            continue
        joint = f"{match[1]}.down_proj" if match[3] == "down" else f"{match[1]}.gate_up_proj"
        rows = shape[0] if match[3] == "down" else 2 * shape[0]
        found[joint] = (max(found.get(joint, (0,))[0], int(match[2]) + 1), rows, *shape[1:])
    return found


def with_experts(shapes: Shapes, layout: str | None) -> Shapes:
    """The same experts, one by one or packed; None leaves them as they are."""
    if layout is None:
        return shapes
    return packed(shapes) if layout == PACKED else unpacked(shapes)
