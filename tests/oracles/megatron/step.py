"""Step-3.5 (step3p5) in the words of the other families, and its attention as a Megatron layer.

Every layer has a number of heads of its own kind (full or sliding) and one gate per head, whose rows stand behind those of
q, k and v in Megatron-Bridge's `linear_qkv`. megatron-core 0.16.1 knows neither: its real attention runs here with heads
per layer, and hooks take the gates' rows out of the projection and weigh the heads with them.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

STEP = ("step3p5",)
FIELDS = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "moe_router_scaling_factor": "routed_scaling_factor",
    "norm_expert_weight": "norm_topk_prob",
    "num_attention_groups": "num_key_value_heads",
}
NAMES = {
    ".moe.gate.weight": ".mlp.gate.weight",
    ".moe.router_bias": ".mlp.gate.e_score_correction_bias",
    ".share_expert.": ".mlp.shared_experts.",
    ".transformer.shared_head.norm.": ".shared_head.norm.",
}
COPY = ".transformer.shared_head.output.weight"

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def is_step(config: Config) -> bool:
    """Whether a config is one of Step's."""
    return config["model_type"] in STEP


def plain_config(config: Config) -> Config:
    """The config in GLM-4.5's words; what layers have of their own stays."""
    sparse = [int(entry) for entry in config["moe_layers_enum"].split(",")]
    if sparse != list(range(sparse[0], config["num_hidden_layers"])) or len(set(config["rope_theta"])) != 1:
        raise NotImplementedError("the Megatron oracle builds Step with experts from one layer on and one rotary base")
    return {FIELDS.get(name, name): value for name, value in config.items()} | {
        "first_k_dense_replace": sparse[0],
        "n_group": 1,
        "n_shared_experts": 1,
        "rope_theta": config["rope_theta"][0],
        "topk_group": 1,
        "use_qk_norm": True,
    }


def plain_tensors(tensors: Tensors) -> Tensors:
    """The tensors in GLM-4.5's words, experts one by one, without the copies of the head."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        at, stacked, rest = name.partition(".moe.")
        if stacked and rest.endswith("_proj.weight"):
            found |= {f"{at}.mlp.experts.{e}.{rest}": each for e, each in enumerate(tensor)}
        elif not name.endswith(COPY):
            for old, new in NAMES.items():
                name = name.replace(old, new)
            found[name] = tensor
    return found


def heads_of(config: Config) -> list[int]:
    """Attention heads of every layer, MTP layers included."""
    other = config["attention_other_setting"]["num_attention_heads"]
    return [other if kind == "sliding_attention" else config["num_attention_heads"] for kind in config["layer_types"]]


def model_shapes(config: Config) -> Shapes:
    """Names and shapes of a Step model, from its own config, without the copies of the head."""
    h, size, groups = config["hidden_size"], config["head_dim"], config["num_attention_groups"]
    n, sparse = config["num_hidden_layers"], [int(entry) for entry in config["moe_layers_enum"].split(",")]
    ends = {"model.embed_tokens.weight": (config["vocab_size"], h), "lm_head.weight": (config["vocab_size"], h)}
    shapes: Shapes = {**ends, "model.norm.weight": (h,)}
    for i, heads in enumerate(heads_of(config)):
        rows = {"q": heads * size, "k": groups * size, "v": groups * size, "g": heads}
        layer: Shapes = {f"self_attn.{part}_proj.weight": (count, h) for part, count in rows.items()}
        layer |= {"self_attn.o_proj.weight": (h, heads * size)}
        layer |= {f"self_attn.{part}_norm.weight": (size,) for part in "qk"}
        layer |= {f"{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
        layer |= _sparse(config) if i in sparse else _gated("mlp", h, config["intermediate_size"])
        if i >= n:
            layer |= {f"{norm}.weight": (h,) for norm in ("enorm", "hnorm", "transformer.shared_head.norm")}
            layer |= {"eh_proj.weight": (h, 2 * h)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _gated(at: str, h: int, f: int) -> Shapes:
    return {f"{at}.gate_proj.weight": (f, h), f"{at}.up_proj.weight": (f, h), f"{at}.down_proj.weight": (h, f)}


def _sparse(config: Config) -> Shapes:
    h, f, experts = config["hidden_size"], config["moe_intermediate_size"], config["moe_num_experts"]
    stacked = {f"moe.{part}_proj.weight": (experts, f, h) for part in ("gate", "up")}
    router = {"moe.gate.weight": (experts, h), "moe.router_bias": (experts,), "moe.down_proj.weight": (experts, h, f)}
    return {**stacked, **router, **_gated("share_expert", h, config["share_expert_dim"])}


def with_head_gates(layer_specs: list[Any], heads: list[int]) -> list[Any]:
    """Megatron's layers with gated attention of so many heads each."""
    found = []
    for spec, count in zip(layer_specs, heads, strict=True):
        attention = spec.submodules.self_attention
        gated = replace(attention, module=_attention_class(), params={**attention.params, "heads": count})
        found.append(replace(spec, submodules=replace(spec.submodules, self_attention=gated)))
    return found


def _attention_class() -> type:
    """Made when asked for, so that this module can be read without Megatron."""
    from megatron.core.transformer.attention import SelfAttention

    class HeadGatedAttention(SelfAttention):  # type: ignore[misc]
        """Megatron's attention of `heads` heads; the projection's last `heads` rows are their gates."""

        def __init__(self, config: Any, submodules: Any, *args: Any, heads: int, **kwargs: Any) -> None:
            own = copy.copy(config)
            own.num_attention_heads = heads
            super().__init__(own, submodules, *args, **kwargs)
            self.linear_qkv = submodules.linear_qkv(
                own.hidden_size,
                self.query_projection_size + 2 * self.kv_projection_size + heads,
                config=own,
                init_method=own.init_method,
                gather_output=False,
                bias=False,
                skip_bias_add=False,
                is_expert=False,
            )
            self.linear_qkv.register_forward_hook(self._take_gates)
            self.linear_proj.register_forward_pre_hook(self._weigh_heads)

        def _take_gates(self, _: Any, __: Any, out: tuple[torch.Tensor, None]) -> tuple[torch.Tensor, None]:
            heads = self.config.num_attention_heads
            self.gates = out[0][..., -heads:]
            return out[0][..., :-heads], None

        def _weigh_heads(self, _: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            weights = self.gates.sigmoid().repeat_interleave(self.config.kv_channels, -1)
            return (args[0] * weights, *args[1:])

    return HeadGatedAttention
