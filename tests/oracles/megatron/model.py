"""Build the real megatron-core GPTModel that a Hugging Face config.json describes, for this process's rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from .hf import HfConfig, head_dim, is_tied, query_groups, rope_parameters
from .sharding import Layout
from .shims import PretendCuda

# What the llama3 rotary scaling of megatron-core hard-codes; only the factor is a setting.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Family:
    """What a model_type fixes that its config.json does not say."""

    qkv_bias: bool = False
    qk_layernorm: bool = False


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_layernorm=True),
    "mimo": Family(qkv_bias=True),
}


def family_of(hf_config: HfConfig) -> Family:
    """The family of a config; refuses what the oracle has no statement for."""
    model_type = hf_config["model_type"]
    if model_type not in FAMILIES:
        raise NotImplementedError(f"the Megatron oracle does not build model_type {model_type!r}")
    optional = {"attention_bias": model_type in ("llama", "qwen3"), "mlp_bias": True, "use_sliding_window": True}
    for option, matters in optional.items():
        if matters and hf_config.get(option):
            raise NotImplementedError(f"the Megatron oracle does not build {model_type} with {option}")
    if hf_config.get("hidden_act", "silu") != "silu":
        raise NotImplementedError(f"hidden_act {hf_config['hidden_act']!r}")
    return FAMILIES[model_type]


def transformer_config(hf_config: HfConfig, layout: Layout, *, mtp: int, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's configuration of the model; other kinds of families add their fields here."""
    fields: dict[str, Any] = {}
    fields |= _attention_fields(hf_config)
    fields |= _dense_mlp_fields(hf_config)
    fields |= _parallel_fields(layout, dtype)
    fields |= _cpu_fields()
    return TransformerConfig(
        num_layers=hf_config["num_hidden_layers"],
        hidden_size=hf_config["hidden_size"],
        normalization="RMSNorm",
        layernorm_epsilon=hf_config["rms_norm_eps"],
        hidden_dropout=0.0,
        attention_dropout=0.0,
        mtp_num_layers=mtp or None,
        **fields,
    )


def _attention_fields(hf_config: HfConfig) -> dict[str, Any]:
    family = family_of(hf_config)
    return {
        "num_attention_heads": hf_config["num_attention_heads"],
        "num_query_groups": query_groups(hf_config),
        "kv_channels": head_dim(hf_config),
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_layernorm,
    }


def _dense_mlp_fields(hf_config: HfConfig) -> dict[str, Any]:
    return {
        "ffn_hidden_size": hf_config["intermediate_size"],
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
    }


def _parallel_fields(layout: Layout, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
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


def layer_spec(config: TransformerConfig) -> ModuleSpec:
    """Megatron's local (TransformerEngine-free) layer; TransformerEngine does not exist on CPU."""
    return gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")


def _rotary_arguments(hf_config: HfConfig) -> dict[str, Any]:
    rope = rope_parameters(hf_config)
    arguments: dict[str, Any] = {"rotary_base": rope["rope_theta"]}
    if rope["rope_type"] == "llama3":
        for key, fixed in LLAMA3_FIXED.items():
            if rope[key] != fixed:
                raise NotImplementedError(f"megatron-core hard-codes {key} = {fixed}, the config says {rope[key]}")
        arguments |= {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
    elif rope["rope_type"] != "default":
        raise NotImplementedError(f"rope_type {rope['rope_type']!r}")
    return arguments


def build_model(hf_config: HfConfig, layout: Layout, *, mtp: int, dtype: torch.dtype, padded_vocab: int) -> GPTModel:
    """This rank's part of the model, in eval mode, every parameter in `dtype` and filled with NaN.

    NaN, so that a parameter, or a part of one, that a load leaves alone is seen.
    """
    config = transformer_config(hf_config, layout, mtp=mtp, dtype=dtype)
    spec = layer_spec(config)
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
            mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, False) if mtp else None,
            **_rotary_arguments(hf_config),
        )
    # Norm weights are born float32; training casts the whole model (Float16Module), so this does too.
    model = model.to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model
