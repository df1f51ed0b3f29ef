"""Nemotron-H (nemotron_h): its sizes, its tensors, and what each parameter of Megatron's MambaModel must be.

Plain torch; neither Megatron nor the converter is asked. Layers are Mamba (M), attention (*), MLP (-) or experts (E), each
with a norm of its own; no MLP is gated.
"""

from __future__ import annotations

from typing import Any

import torch

HYBRID = ("nemotron_h",)
OUTER = {
    "backbone.embeddings.weight": "model.embed_tokens.weight",
    "backbone.norm_f.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
MAMBA = ("A_log", "D", "dt_bias", "conv1d.weight", "conv1d.bias", "in_proj.weight", "norm.weight", "out_proj.weight")

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def is_hybrid(config: Config) -> bool:
    """Whether a config is one of Nemotron-H's."""
    return config["model_type"] in HYBRID


def named_outside(tensors: Tensors) -> Tensors:
    """The same tensors, those outside the layers named as in other families; MTP layers are not Megatron 0.16.1's."""
    return {OUTER.get(name, name): tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def mamba_sizes(config: Config) -> tuple[int, ...]:
    """Rows of z, x, B, C and dt in the joint projection; the filters have those of x, B and C."""
    inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    states = config["n_groups"] * config["ssm_state_size"]
    return inner, inner, states, states, config["mamba_num_heads"]


def model_shapes(config: Config) -> Shapes:
    """Names and shapes of every tensor, MTP layers included."""
    h, pattern, mtp = config["hidden_size"], config["hybrid_override_pattern"], config["mtp_hybrid_override_pattern"]
    shapes: Shapes = {"backbone.embeddings.weight": (config["vocab_size"], h), "backbone.norm_f.weight": (h,)}
    shapes["lm_head.weight"] = (config["vocab_size"], h)
    layers = {f"backbone.layers.{i}.": kind for i, kind in enumerate(pattern)}
    layers |= {f"mtp.layers.{i}.": kind for i, kind in enumerate(mtp * config["num_nextn_predict_layers"])}
    for at, kind in layers.items():
        mixer = {"M": _mamba, "*": _attention, "-": _mlp, "E": _experts}[kind](config)
        shapes |= {f"{at}norm.weight": (h,)} | {f"{at}mixer.{name}": shape for name, shape in mixer.items()}
    for k in range(config["num_nextn_predict_layers"]):
        first, last = (f"mtp.layers.{i}." for i in (k * len(mtp), (k + 1) * len(mtp) - 1))
        shapes |= {f"{first}{name}.weight": (h,) for name in ("enorm", "hnorm")}
        shapes |= {f"{first}eh_proj.weight": (h, 2 * h), f"{last}final_layernorm.weight": (h,)}
    return shapes


def _mamba(config: Config) -> Shapes:
    h, sizes = config["hidden_size"], mamba_sizes(config)
    filters, heads = sum(sizes[1:4]), (config["mamba_num_heads"],)
    shapes: Shapes = {"in_proj.weight": (sum(sizes), h), "out_proj.weight": (h, sizes[0]), "norm.weight": (sizes[0],)}
    conv: Shapes = {"conv1d.weight": (filters, 1, config["conv_kernel"]), "conv1d.bias": (filters,)}
    return shapes | conv | {"A_log": heads, "D": heads, "dt_bias": heads}


def _attention(config: Config) -> Shapes:
    h, size = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    rows = {"q": q, "k": kv, "v": kv}
    return {f"{part}_proj.weight": (count, h) for part, count in rows.items()} | {"o_proj.weight": (h, q)}


def _mlp(config: Config) -> Shapes:
    h, f = config["hidden_size"], config["intermediate_size"]
    return {"up_proj.weight": (f, h), "down_proj.weight": (h, f)}


def _experts(config: Config) -> Shapes:
    h, f, count = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    width, shared = config.get("moe_latent_size") or h, config["moe_shared_expert_intermediate_size"]
    shapes: Shapes = {"gate.weight": (count, h), "gate.e_score_correction_bias": (count,)}
    shapes |= {"shared_experts.up_proj.weight": (shared, h), "shared_experts.down_proj.weight": (h, shared)}
    if width != h:
        shapes |= {"fc1_latent_proj.weight": (width, h), "fc2_latent_proj.weight": (h, width)}
    for e in range(count):
        shapes |= {f"experts.{e}.up_proj.weight": (f, width), f"experts.{e}.down_proj.weight": (width, f)}
    return shapes


def expected_layer(config: Config, tensors: Tensors, index: int) -> Tensors:
    """Every parameter of one decoder layer by its module name."""
    source, target = f"backbone.layers.{index}.", f"decoder.layers.{index}."
    own = {name.removeprefix(source): t for name, t in tensors.items() if name.startswith(source)}
    norm = own.pop("norm.weight")
    mixer = {name.removeprefix("mixer."): tensor for name, tensor in own.items()}
    kind = config["hybrid_override_pattern"][index]
    if kind == "M":
        found = {"mixer.in_proj.layer_norm_weight": norm} | {f"mixer.{name}": mixer[name] for name in MAMBA}
    elif kind == "*":
        parts = [mixer[f"{part}_proj.weight"].view(config["num_key_value_heads"], -1, norm.shape[0]) for part in "qkv"]
        found = {
            "input_layernorm.weight": norm,
            "self_attention.linear_qkv.weight": torch.cat(parts, 1).flatten(0, 1),
            "self_attention.linear_proj.weight": mixer["o_proj.weight"],
        }
    else:
        found = {"pre_mlp_layernorm.weight": norm} | {_mlp_name(name): tensor for name, tensor in mixer.items()}
    return {target + name: tensor for name, tensor in found.items()}


def _mlp_name(name: str) -> str:
    """What Megatron calls a tensor of an MLP or of experts."""
    words = {
        "up_proj": "linear_fc1",
        "down_proj": "linear_fc2",
        "gate.weight": "router.weight",
        "gate.e_score_correction_bias": "router.expert_bias",
        "experts.": "experts.local_experts.",
        "shared_experts.local_experts.": "shared_experts.",
    }
    for old, new in words.items():
        name = name.replace(old, new)
    return f"mlp.{name}"
