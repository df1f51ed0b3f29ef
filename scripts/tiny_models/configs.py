"""config.json of every family for given sizes, in the style of transformers 4."""

from __future__ import annotations

from .forms import Config, Sizes


def base_config(sizes: Sizes, architecture: str, model_type: str, rope_theta: float) -> Config:
    """Fields that every dense decoder release has, in the "v4" style."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": sizes.ffn,
        "max_position_embeddings": 512,
        "model_type": model_type,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": rope_theta,
        "use_cache": True,
        "vocab_size": sizes.vocab,
    }


def llama_config(sizes: Sizes) -> Config:
    """Fields of a Llama 3.x release, scaled rope included."""
    scaling = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    return base_config(sizes, "LlamaForCausalLM", "llama", 500000.0) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": scaling,
    }


def qwen2_config(sizes: Sizes) -> Config:
    """Fields of a Qwen2.5 release, which names no head_dim and no attention_bias."""
    own: Config = {"max_window_layers": sizes.layers, "sliding_window": 512, "use_sliding_window": False}
    if sizes.head_dim is not None:
        own["head_dim"] = sizes.head_dim
    return base_config(sizes, "Qwen2ForCausalLM", "qwen2", 1000000.0) | own


def qwen3_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3 release."""
    return base_config(sizes, "Qwen3ForCausalLM", "qwen3", 1000000) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def mimo_config(sizes: Sizes) -> Config:
    """Fields of a MiMo-7B release."""
    return base_config(sizes, "MiMoForCausalLM", "mimo", 640000) | {
        "attention_bias": True,
        "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "num_nextn_predict_layers": sizes.mtp,
        "rms_norm_eps": 1e-05,
        "sliding_window": 512,
        "use_mrope": False,
        "use_sliding_window": False,
    }


def qwen3_moe_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3 MoE release: every layer has experts."""
    return qwen3_config(sizes) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": sizes.moe_ffn,
        "norm_topk_prob": True,
        "num_experts": sizes.experts,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def glm4_config(sizes: Sizes) -> Config:
    """Fields of a dense GLM-4 0414 release."""
    return base_config(sizes, "Glm4ForCausalLM", "glm4", 10000.0) | {
        "attention_bias": True,
        "head_dim": sizes.head_size,
        "pad_token_id": 0,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
    }


def routed_config(sizes: Sizes) -> Config:
    """The routed experts of the DeepSeek and GLM releases, and their count of MTP layers."""
    return {
        "first_k_dense_replace": sizes.dense,
        "moe_intermediate_size": sizes.moe_ffn,
        "n_group": 1,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": sizes.mtp,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
    }


def glm4_moe_config(sizes: Sizes) -> Config:
    """Fields of a GLM-4.5 release."""
    return base_config(sizes, "Glm4MoeForCausalLM", "glm4_moe", 1000000) | {
        **routed_config(sizes),
        "attention_bias": True,
        "head_dim": sizes.head_size,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "use_qk_norm": True,
    }


def latent_config(sizes: Sizes, architecture: str, model_type: str) -> Config:
    """Fields of the releases with latent attention; all widths differ, so that none passes for another."""
    return base_config(sizes, architecture, model_type, 10000) | {
        **routed_config(sizes),
        "attention_bias": False,
        "kv_lora_rank": 20,
        "moe_layer_freq": 1,
        "num_key_value_heads": sizes.heads,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "v_head_dim": 10,
    }


def deepseek_v3_config(sizes: Sizes) -> Config:
    """Fields of DeepSeek-V3: expert groups, yarn."""
    scaling = {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 8,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    }
    own = {"n_group": 4, "topk_group": 2, "rope_scaling": scaling, "ep_size": 1}
    return latent_config(sizes, "DeepseekV3ForCausalLM", "deepseek_v3") | own


def kimi_k2_config(sizes: Sizes) -> Config:
    """Fields of Kimi-K2: DeepSeek-V3 without expert groups, under a name of its own."""
    own = {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
    return deepseek_v3_config(sizes) | own


INDEXER: Config = {"index_head_dim": 128, "index_n_heads": 2, "index_topk": 64}


def deepseek_v32_config(sizes: Sizes) -> Config:
    """Fields of DeepSeek-V3.2: V3 with a sparse-attention indexer in every layer."""
    own = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    return deepseek_v3_config(sizes) | INDEXER | own


def glm4_moe_lite_config(sizes: Sizes) -> Config:
    """Fields of GLM-4.7-Flash."""
    return latent_config(sizes, "Glm4MoeLiteForCausalLM", "glm4_moe_lite") | {"rope_scaling": None}


def glm_moe_dsa_config(sizes: Sizes) -> Config:
    """Fields of GLM-5; ``indexer_types`` of GLM-5.2 comes with ``extra_config``."""
    config = latent_config(sizes, "GlmMoeDsaForCausalLM", "glm_moe_dsa")
    return config | INDEXER | {"indexer_rope_interleave": True, "rope_scaling": None}


def hybrid_config(sizes: Sizes, architecture: str, model_type: str) -> Config:
    """Fields of the Qwen releases with gated delta nets; the last layer of every other two has attention."""
    return base_config(sizes, architecture, model_type, 10000000) | {
        "attention_bias": False,
        "full_attention_interval": 2,
        "head_dim": sizes.head_size,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 12,
        "partial_rotary_factor": 0.25,
    }


def shared_expert_config(sizes: Sizes) -> Config:
    """The experts of the Qwen hybrids."""
    return {
        "moe_intermediate_size": sizes.moe_ffn,
        "num_experts": sizes.experts,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": sizes.moe_ffn + 4,
    }


def qwen3_next_config(sizes: Sizes) -> Config:
    """Fields of Qwen3-Next, which does not declare its MTP layer."""
    own: Config = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "rope_scaling": None}
    config = hybrid_config(sizes, "Qwen3NextForCausalLM", "qwen3_next")
    return config | shared_expert_config(sizes) | own


def layer_types(sizes: Sizes) -> list[str]:
    return ["full_attention" if i % 2 else "linear_attention" for i in range(sizes.layers)]


def qwen3_5_config(sizes: Sizes) -> Config:
    """Fields of a dense Qwen3.5 language model."""
    own = {"attn_output_gate": True, "layer_types": layer_types(sizes), "mtp_num_hidden_layers": sizes.mtp}
    return hybrid_config(sizes, "Qwen3_5ForCausalLM", "qwen3_5_text") | own


def qwen3_5_moe_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3.5 MoE language model, which names no intermediate_size."""
    config = qwen3_5_config(sizes) | shared_expert_config(sizes)
    del config["intermediate_size"]
    return config | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}


def qwen3_5_wrapper(text: Config, sizes: Sizes) -> Config:
    """The config of a Qwen3.5 release with its vision tower, around that of the language model."""
    model_type = text["model_type"].removesuffix("_text")
    vision = {
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 16,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "model_type": f"{model_type}_vision",
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": sizes.hidden,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    version = text.pop("transformers_version")
    architecture = text.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
    return {
        "architectures": [architecture],
        "image_token_id": sizes.vocab - 1,
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "transformers_version": version,
        "video_token_id": sizes.vocab - 2,
        "vision_config": vision,
        "vision_end_token_id": sizes.vocab - 3,
        "vision_start_token_id": sizes.vocab - 4,
    }
