"""Megatron's configuration of the model that a Hugging Face config.json describes."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn import functional

from . import hybrid, mamba, oss, step
from .hf import (
    DELTA_NET,
    ZERO_CENTRED,
    HfConfig,
    head_dim,
    is_latent,
    is_sparse,
    linear_layers,
    moe_layers,
    num_experts,
    query_groups,
    rope_parameters,
)
from .sharding import Layout

MIMO_LIKE = ("qwen2", "mimo")
FAMILIES = (
    *("llama", "qwen2", "qwen3", "mimo", "qwen3_moe", "glm4_moe"),
    *("deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"),
    *DELTA_NET,
    *step.STEP,
    *hybrid.HYBRID,
    *oss.OSS,
)


def check_buildable(hf_config: HfConfig) -> None:
    """Refuse what the oracle has no statement for."""
    model_type = hf_config["model_type"]
    if model_type not in FAMILIES:
        raise NotImplementedError(f"the Megatron oracle does not build model_type {model_type!r}")
    optional = {
        "attention_bias": model_type not in ("qwen2", "mimo", "glm4_moe", *oss.OSS),
        "mlp_bias": True,
        "use_sliding_window": True,
    }
    for option, matters in optional.items():
        if matters and hf_config.get(option):
            raise NotImplementedError(f"the Megatron oracle does not build {model_type} with {option}")
    if hf_config.get("hidden_act", "silu") != "silu":
        raise NotImplementedError(f"hidden_act {hf_config['hidden_act']!r}")


def transformer_config(hf_config: HfConfig, layout: Layout, *, mtp: int, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's configuration of the model; other kinds of families add their fields here."""
    check_buildable(hf_config)
    latent = is_latent(hf_config)
    fields: dict[str, Any] = {}
    fields |= _latent_attention_fields(hf_config) if latent else _attention_fields(hf_config)
    fields |= _delta_net_fields(hf_config) if linear_layers(hf_config) else {}
    fields |= {"layernorm_zero_centered_gamma": hf_config["model_type"] in ZERO_CENTRED}
    fields |= _dense_mlp_fields(hf_config)
    fields |= _moe_fields(hf_config) if num_experts(hf_config) else {}
    fields |= mamba.fields(hf_config) if hybrid.is_hybrid(hf_config) else {}
    fields |= oss.fields() if oss.is_oss(hf_config) else {}
    fields |= _parallel_fields(layout, dtype)
    fields |= _cpu_fields()
    return (MLATransformerConfig if latent else TransformerConfig)(
        num_layers=hf_config["num_hidden_layers"],
        hidden_size=hf_config["hidden_size"],
        normalization="RMSNorm",
        layernorm_epsilon=hf_config.get("layer_norm_epsilon") or hf_config["rms_norm_eps"],
        hidden_dropout=0.0,
        attention_dropout=0.0,
        mtp_num_layers=mtp or None,
        **fields,
    )


def _attention_fields(hf_config: HfConfig) -> dict[str, Any]:
    """Biases and norms that the family fixes (Qwen) or the config states (GLM)."""
    model_type = hf_config["model_type"]
    return {
        "num_attention_heads": hf_config["num_attention_heads"],
        "num_query_groups": query_groups(hf_config),
        "kv_channels": head_dim(hf_config),
        "add_qkv_bias": model_type in MIMO_LIKE or bool(hf_config.get("attention_bias")),
        "qk_layernorm": model_type in ("qwen3", "qwen3_moe", *DELTA_NET) or bool(hf_config.get("use_qk_norm")),
    }


def _latent_attention_fields(hf_config: HfConfig) -> dict[str, Any]:
    """Latent attention, its norms, and plain rotary embeddings (Megatron's own default is YaRN)."""
    rope = rope_parameters(hf_config)
    if rope["rope_type"] != "default":
        raise NotImplementedError(f"latent attention with rope_type {rope['rope_type']!r}")
    return _indexer_fields(hf_config) | {
        "multi_latent_attention": True,
        "num_attention_heads": hf_config["num_attention_heads"],
        "q_lora_rank": hf_config["q_lora_rank"],
        "kv_lora_rank": hf_config["kv_lora_rank"],
        "qk_head_dim": hf_config["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": hf_config["qk_rope_head_dim"],
        "v_head_dim": hf_config["v_head_dim"],
        "kv_channels": hf_config["v_head_dim"],  # the local attention sizes its output by it
        "qk_layernorm": True,
        "rope_type": "rope",
        "rotary_base": rope["rope_theta"],
        "rotary_scaling_factor": 1.0,
    }


def _indexer_fields(hf_config: HfConfig) -> dict[str, Any]:
    if not is_sparse(hf_config):
        return {}
    return {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": hf_config["index_n_heads"],
        "dsa_indexer_head_dim": hf_config["index_head_dim"],
        "dsa_indexer_topk": hf_config["index_topk"],
    }


def _delta_net_fields(hf_config: HfConfig) -> dict[str, Any]:
    """Gated delta nets and gated attention; `deterministic_mode` runs Megatron's plain torch delta rule."""
    linear = linear_layers(hf_config)
    shared = ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
    return {f"linear_{name}": hf_config[f"linear_{name}"] for name in shared} | {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": [int(i in linear) for i in range(hf_config["num_hidden_layers"])],
        "attention_output_gate": True,
        "deterministic_mode": True,
    }


def _dense_mlp_fields(hf_config: HfConfig) -> dict[str, Any]:
    return {
        "ffn_hidden_size": hf_config.get("intermediate_size") or hf_config["moe_intermediate_size"],
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
    }


def _moe_fields(hf_config: HfConfig) -> dict[str, Any]:
    """Experts and the routing of transformers; DeepSeek and GLM score by sigmoid, Qwen by softmax."""
    sparse = moe_layers(hf_config)
    layers = [int(i in sparse) for i in range(hf_config["num_hidden_layers"])]
    sigmoid = "n_routed_experts" in hf_config
    routing = _sigmoid_routing(hf_config) if sigmoid else _softmax_routing(hf_config)
    return routing | {
        "num_moe_experts": num_experts(hf_config),
        "moe_router_topk": hf_config["num_experts_per_tok"],
        "moe_ffn_hidden_size": hf_config["moe_intermediate_size"],
        "moe_layer_freq": 1 if all(layers) else layers,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": False,
        "moe_token_dispatcher_type": "allgather",
    }


def _softmax_routing(hf_config: HfConfig) -> dict[str, Any]:
    """Without renormalisation the softmax is over all experts, hence before the choice."""
    shared = hf_config.get("shared_expert_intermediate_size")
    return {
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": not hf_config.get("norm_topk_prob", True),
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": shared is not None,
    }


def _sigmoid_routing(hf_config: HfConfig) -> dict[str, Any]:
    """Megatron always renormalises; it ranks groups by the sum of their best k / groups, transformers by that of two."""
    groups, chosen, top_k = (hf_config[name] for name in ("n_group", "topk_group", "num_experts_per_tok"))
    if not hf_config["norm_topk_prob"] or (groups > 1 and top_k // chosen != 2):
        raise NotImplementedError("Megatron has no such routing")
    shared = (hf_config.get("n_shared_experts") or 0) * hf_config["moe_intermediate_size"]
    limits = {"moe_router_num_groups": groups, "moe_router_group_topk": chosen} if groups > 1 else {}
    return limits | {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": hf_config["routed_scaling_factor"],
        "moe_shared_expert_intermediate_size": shared or None,
    }


def _parallel_fields(layout: Layout, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "expert_model_parallel_size": layout.ep,
        "num_layers_in_first_pipeline_stage": layout.first_stage_layers,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
    }


def _cpu_fields() -> dict[str, Any]:
    """Initialise on the CPU, and no fused CUDA kernel anywhere."""
    return {
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
