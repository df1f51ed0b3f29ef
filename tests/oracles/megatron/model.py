"""Build the real megatron-core GPTModel that a Hugging Face config.json describes, for this process's rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variant_specs
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn import functional

from . import hybrid, mamba, oss, stand_ins, step
from .hf import (
    DELTA_NET,
    ZERO_CENTRED,
    HfConfig,
    head_dim,
    is_latent,
    is_sparse,
    is_tied,
    linear_layers,
    moe_layers,
    num_experts,
    query_groups,
    rope_parameters,
)
from .sharding import Layout
from .shims import PretendCuda

# What the llama3 rotary scaling of megatron-core hard-codes; only the factor is a setting.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


stand_ins.install()

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


def layer_spec(config: TransformerConfig, te_names: bool) -> ModuleSpec | TransformerBlockSubmodules:
    """Megatron's local layers, or its TransformerEngine layers made of stand-ins, for that does not exist on CPU."""
    if config.experimental_attention_variant == "dsa":
        return _with_indexers(gpt_layer_specs.get_gpt_decoder_block_spec(config, te_names, "RMSNorm"), config)
    if config.experimental_attention_variant:
        return variant_specs.get_transformer_block_with_experimental_attention_variant_spec(config)
    if te_names or config.num_moe_experts is not None:
        return gpt_layer_specs.get_gpt_decoder_block_spec(config, te_names, normalization="RMSNorm")
    return gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")


def _with_indexers(block: TransformerBlockSubmodules, config: TransformerConfig) -> TransformerBlockSubmodules:
    """The block with Megatron's sparse attention in every layer (0.16.1 has the attention's spec, not the block's)."""
    attention = variant_specs.get_dsa_module_spec_for_backend(config, stand_ins.StandInProvider())
    for spec in block.layer_specs:
        spec.submodules.self_attention = attention
    return block


def _rotary_arguments(hf_config: HfConfig) -> dict[str, Any]:
    rope = rope_parameters(hf_config)
    percent = rope.get("partial_rotary_factor") or hf_config.get("partial_rotary_factor") or 1.0
    arguments: dict[str, Any] = {"rotary_base": rope["rope_theta"], "rotary_percent": percent}
    if rope["rope_type"] == "llama3":
        for key, fixed in LLAMA3_FIXED.items():
            if rope[key] != fixed:
                raise NotImplementedError(f"megatron-core hard-codes {key} = {fixed}, the config says {rope[key]}")
        arguments |= {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
    elif rope["rope_type"] != "default":
        raise NotImplementedError(f"rope_type {rope['rope_type']!r}")
    return arguments


def build_model(
    hf_config: HfConfig, layout: Layout, *, mtp: int, dtype: torch.dtype, padded_vocab: int, te_names: bool
) -> GPTModel:
    """This rank's part of the model, in eval mode, every parameter in `dtype` and filled with NaN.

    NaN, so that a parameter, or a part of one, that a load leaves alone is seen.
    """
    config = transformer_config(hf_config, layout, mtp=mtp, dtype=dtype)
    if hybrid.is_hybrid(hf_config):
        return _ready(mamba.build(hf_config, config, padded_vocab), dtype)
    spec = mtp_spec = layer_spec(config, te_names)
    if step.is_step(hf_config):
        heads, kinds = step.heads_of(hf_config), spec.layer_specs
        spec = replace(spec, layer_specs=step.with_head_gates(kinds, heads[: len(kinds)]))
        mtp_spec = replace(spec, layer_specs=step.with_head_gates(kinds[:1], heads[-1:]))
    with PretendCuda():  # a pipeline that shares the embedding moves it with .cuda()
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=padded_vocab,
            max_sequence_length=hf_config["max_position_embeddings"],
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            parallel_output=False,
            share_embeddings_and_output_weights=is_tied(hf_config),
            position_embedding_type="rope",
            mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec(config, mtp_spec, te_names) if mtp else None,
            **_rotary_arguments(hf_config),
        )
    return _ready(model, dtype)


def _ready(model: GPTModel, dtype: torch.dtype) -> GPTModel:
    # Norm weights are born float32; training casts the whole model (Float16Module), so this does too.
    model = model.to(dtype).eval()
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module._maintain_float32_expert_bias()
    with torch.no_grad():
        for _, tensor in stored_tensors(model):
            tensor.fill_(float("nan"))
    return model


def stored_tensors(model: GPTModel) -> list[tuple[str, torch.Tensor]]:
    """What a checkpoint holds of a model: its parameters and the routers' biases, which are buffers."""
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(".expert_bias")]
    return [*((name, parameter.detach()) for name, parameter in model.named_parameters()), *biases]


def rotary_frequencies(model: GPTModel) -> torch.Tensor:
    """The rotary frequencies; latent attention has its own in every layer."""
    owner = model if hasattr(model, "rotary_pos_emb") else model.decoder.layers[0].self_attention
    frequencies: torch.Tensor = owner.rotary_pos_emb.inv_freq
    return frequencies
