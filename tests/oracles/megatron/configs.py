"""config.json of the same small model in every family."""

from __future__ import annotations

from typing import Any

from .hf import HfConfig

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "bailing_moe": "BailingMoeV2ForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
NEXTN_FIELDS: HfConfig = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 1.5,
    "topk_group": 1,
}
LATENT_FIELDS: HfConfig = {
    "attention_bias": False,
    "kv_lora_rank": 16,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6,  # transformers' norms inside latent attention know no other
    "rope_interleave": True,
    "v_head_dim": 12,
}
INDEXER_FIELDS: HfConfig = {"index_head_dim": 20, "index_n_heads": 3, "index_topk": 64}
DELTA_NET_FIELDS: HfConfig = {
    "attention_bias": False,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 20,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
}
QWEN_MOE_FIELDS: HfConfig = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
GATED_EXPERT: HfConfig = {"shared_expert_intermediate_size": 40}
OWN_FIELDS: dict[str, HfConfig] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "qwen3": {"attention_bias": False, "head_dim": 32},
    "mimo": {"num_nextn_predict_layers": 1},
    "qwen3_moe": QWEN_MOE_FIELDS | {"attention_bias": False, "head_dim": 32},
    "glm4_moe": NEXTN_FIELDS
    | {"attention_bias": True, "head_dim": 24, "partial_rotary_factor": 0.5, "use_qk_norm": True},
    "bailing_moe": {
        "first_k_dense_replace": 1,
        "head_dim": 24,
        "moe_intermediate_size": 32,
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": 32,
        "n_group": 4,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "num_nextn_predict_layers": 1,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "topk_group": 2,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
    },
    "step3p5": {
        "attention_other_setting": {"head_dim": 24, "num_attention_groups": 2, "num_attention_heads": 6},
        "head_dim": 24,
        "layer_types": [*["full_attention", "sliding_attention"] * 2, *["sliding_attention"] * 2],
        "moe_intermediate_size": 32,
        "moe_layers_enum": "1,2,3",
        "moe_num_experts": 4,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "moe_top_k": 2,
        "norm_expert_weight": True,
        "num_attention_groups": 2,
        "num_nextn_predict_layers": 2,
        "rope_theta": [10000.0] * 6,
        "share_expert_dim": 32,
        "sliding_window": 64,  # as long as all positions: what a window hides is not Megatron's to know
        "use_head_wise_attn_gate": True,
        "use_moe_router_bias": True,
        "use_qk_norm": True,
        "zero_centered": True,
    },
    "gpt_oss": {
        "attention_bias": True,
        "head_dim": 24,
        "intermediate_size": 40,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 64,  # as long as all positions
        "swiglu_limit": 7.0,
    },
    "nemotron_h": {
        "conv_kernel": 4,
        "head_dim": 24,
        "hybrid_override_pattern": "ME*-",
        "layer_norm_epsilon": 1e-5,
        "mamba_head_dim": 12,
        "mamba_num_heads": 8,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 32,
        "moe_latent_size": 40,
        "moe_shared_expert_intermediate_size": 48,
        "mtp_hybrid_override_pattern": "*E",
        "n_group": 1,
        "n_groups": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 2.5,
        "ssm_state_size": 10,
        "topk_group": 1,
        "use_conv_bias": True,
    },
    "deepseek_v3": NEXTN_FIELDS
    | LATENT_FIELDS
    | {"n_group": 4, "n_routed_experts": 8, "num_experts_per_tok": 4, "routed_scaling_factor": 2.5, "topk_group": 2},
    "glm4_moe_lite": NEXTN_FIELDS | LATENT_FIELDS | {"v_head_dim": 20},
    "deepseek_v32": NEXTN_FIELDS | LATENT_FIELDS | INDEXER_FIELDS,
    "glm_moe_dsa": NEXTN_FIELDS | LATENT_FIELDS | INDEXER_FIELDS,
    "qwen3_next": DELTA_NET_FIELDS | QWEN_MOE_FIELDS | GATED_EXPERT | {"num_nextn_predict_layers": 1},
    "qwen3_5_text": DELTA_NET_FIELDS | {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe_text": DELTA_NET_FIELDS | QWEN_MOE_FIELDS | GATED_EXPERT | {"mtp_num_hidden_layers": 1},
}

LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
# What a save step needs to write a training iteration of each kind (see run.py).
TRAINING: dict[str, dict[str, Any]] = {
    "distributed": {
        "content_metadata": {"singleton_local_shards": False, "chained_optim_avoid_prefix": True},
        "training": {"iteration": 7, "optimizer": "distributed", "rng": True, "args": {"seed": 3}},
    },
    "fully-reshardable": {
        "content_metadata": {"non_homogeneous_layers": True, "distrib_optim_sharding_type": "fully_reshardable"},
        "training": {"iteration": 7, "optimizer": "distributed", "rng": True},
        "first_stage_layers": 3,
    },
    "adam": {"training": {"iteration": 7, "optimizer": "adam", "rng": True}},
}


def tiny_config(family: str, **overrides: Any) -> HfConfig:
    """A config.json of hidden size 64, 4 layers, 4 heads, 2 key/value heads and 96 words.

    Qwen3's heads are wider than hidden size / heads; families with MTP have one layer of it; those with experts have 4
    to 8, the first layer being dense except in Qwen3.
    """
    config: HfConfig = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return config | OWN_FIELDS.get(family, {}) | overrides
