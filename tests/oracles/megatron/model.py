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
from megatron.core.transformer.transformer_config import TransformerConfig

from . import hybrid, mamba, stand_ins, step
from .config import transformer_config
from .hf import HfConfig, is_tied, rope_parameters
from .sharding import Layout
from .shims import PretendCuda

# What the llama3 rotary scaling of megatron-core hard-codes; only the factor is a setting.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


stand_ins.install()


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
