"""gpt-oss in the words of Qwen3 MoE: its experts one by one, gate and up apart.

Releases store the experts of a layer as [expert, in, out], and gate and up in alternating columns of one matrix.
"""

from __future__ import annotations

from typing import Any

import torch

OSS = ("gpt_oss",)
FIELDS = {"num_local_experts": "num_experts"}

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def is_oss(config: Config) -> bool:
    """Whether a config is one of gpt-oss."""
    return config["model_type"] in OSS


def plain_config(config: Config) -> Config:
    """The config in Qwen3 MoE's words; `intermediate_size` is an expert's."""
    if (config["swiglu_limit"], config["hidden_act"]) != (7.0, "silu"):
        raise NotImplementedError("the Megatron oracle builds gpt-oss with its releases' activation")
    own = {"moe_intermediate_size": config["intermediate_size"]}
    return {FIELDS.get(name, name): value for name, value in config.items()} | own


def plain_tensors(tensors: Tensors) -> Tensors:
    """The tensors in Qwen3 MoE's words, biases beside the weights."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        at, packed, last = name.partition(".mlp.experts.")
        if not packed:
            found[name.replace(".mlp.router.", ".mlp.gate.")] = tensor
            continue
        kind = "bias" if last.endswith("_bias") else "weight"
        for e, each in enumerate(tensor):
            whole = each if kind == "bias" else each.T
            parts = {"gate": whole[::2], "up": whole[1::2]} if last.startswith("gate_up") else {"down": whole}
            found |= {f"{at}.mlp.experts.{e}.{part}_proj.{kind}": t.contiguous() for part, t in parts.items()}
    return found


def model_shapes(config: Config) -> Shapes:
    """Names and shapes of every tensor."""
    h, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    experts, heads, size = config["num_local_experts"], config["num_attention_heads"], config["head_dim"]
    rows = {"q": heads * size, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}
    layer: Shapes = {f"self_attn.{part}_proj.weight": (count, h) for part, count in rows.items()}
    layer |= {f"self_attn.{part}_proj.bias": (count,) for part, count in rows.items()}
    layer |= {"self_attn.o_proj.weight": (h, heads * size), "self_attn.o_proj.bias": (h,), "self_attn.sinks": (heads,)}
    layer |= {f"{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
    layer |= {"mlp.router.weight": (experts, h), "mlp.router.bias": (experts,)}
    layer |= {"mlp.experts.gate_up_proj": (experts, h, 2 * f), "mlp.experts.gate_up_proj_bias": (experts, 2 * f)}
    layer |= {"mlp.experts.down_proj": (experts, f, h), "mlp.experts.down_proj_bias": (experts, h)}
    shapes: Shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def fields() -> dict[str, Any]:
    """What of Megatron's configuration is gpt-oss's own: sinks, biases everywhere, a clamped activation."""
    from megatron.core.activations import quick_gelu

    return {
        "activation_func": quick_gelu,
        "activation_func_clamp_value": 7.0,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "glu_linear_offset": 1.0,
        "softmax_type": "learnable",
    }
