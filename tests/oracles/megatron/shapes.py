"""Names and shapes of a small model's tensors, as releases of its family store them."""

from __future__ import annotations

from .hf import (
    DELTA_NET,
    NEXTN,
    HfConfig,
    delta_net_sizes,
    head_dim,
    is_latent,
    is_sparse,
    is_tied,
    linear_layers,
    moe_layers,
    mtp_layers,
    num_experts,
    query_groups,
)

Shapes = dict[str, tuple[int, ...]]


def model_shapes(config: HfConfig) -> Shapes:
    """Every tensor of a model but the copies that some releases keep in their MTP layers."""
    shapes = _outer_shapes(config)
    sparse, linear = moe_layers(config), linear_layers(config)
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer_shapes(config, f"model.layers.{i}.", sparse=i in sparse, linear=i in linear)
    for i in range(mtp_layers(config)):
        if config["model_type"] in DELTA_NET:
            shapes |= _qwen_mtp_shapes(config, i)
        elif config["model_type"] in NEXTN:
            shapes |= _nextn_shapes(config, f"model.layers.{config['num_hidden_layers'] + i}.")
        else:
            shapes |= _mtp_shapes(config, f"model.mtp_layers.{i}.")
    return shapes


def _outer_shapes(config: HfConfig) -> Shapes:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not is_tied(config):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _layer_shapes(config: HfConfig, prefix: str, *, sparse: bool = False, linear: bool = False) -> Shapes:
    hidden = config["hidden_size"]
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if linear:
        shapes |= _delta_net_shapes(config)
    else:
        shapes |= _latent_attention_shapes(config) if is_latent(config) else _attention_shapes(config)
    shapes |= _moe_shapes(config) if sparse else _mlp_shapes("mlp.", hidden, config["intermediate_size"])
    return {prefix + name: shape for name, shape in shapes.items()}


def _attention_shapes(config: HfConfig) -> Shapes:
    hidden, size, model_type = config["hidden_size"], head_dim(config), config["model_type"]
    rows = {"q": config["num_attention_heads"] * size, "k": query_groups(config) * size}
    rows["v"] = rows["k"]
    shapes: Shapes = {"self_attn.o_proj.weight": (hidden, rows["q"])}
    if model_type in DELTA_NET:
        rows["q"] *= 2
    for part, count in rows.items():
        shapes[f"self_attn.{part}_proj.weight"] = (count, hidden)
        if model_type in ("qwen2", "mimo") or config.get("attention_bias"):
            shapes[f"self_attn.{part}_proj.bias"] = (count,)
    if model_type in ("qwen3", "qwen3_moe", *DELTA_NET) or config.get("use_qk_norm"):
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    return shapes


def _latent_attention_shapes(config: HfConfig) -> Shapes:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    shapes: Shapes = {
        "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + value), rank),
        "o_proj.weight": (hidden, heads * value),
    }
    if q_rank := config["q_lora_rank"]:
        shapes |= {"q_a_proj.weight": (q_rank, hidden), "q_a_layernorm.weight": (q_rank,)}
        shapes |= {"q_b_proj.weight": (heads * (nope + rope), q_rank)}
    else:
        shapes |= {"q_proj.weight": (heads * (nope + rope), hidden)}
    if is_sparse(config):
        index_heads, size = config["index_n_heads"], config["index_head_dim"]
        indexer: Shapes = {
            "wq_b.weight": (index_heads * size, config["q_lora_rank"]),
            "wk.weight": (size, hidden),
            "weights_proj.weight": (index_heads, hidden),
            "k_norm.weight": (size,),
            "k_norm.bias": (size,),
        }
        shapes |= {f"indexer.{name}": shape for name, shape in indexer.items()}
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _delta_net_shapes(config: HfConfig) -> Shapes:
    hidden, heads, size = config["hidden_size"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys, _, values, *_ = delta_net_sizes(config)
    shapes: Shapes = {
        "A_log": (heads,),
        "conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
        "dt_bias": (heads,),
        "norm.weight": (size,),
        "out_proj.weight": (hidden, values),
    }
    if config["model_type"] == "qwen3_next":
        rows = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads}
    else:
        rows = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
    shapes |= {f"in_proj_{name}.weight": (count, hidden) for name, count in rows.items()}
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}


def _mlp_shapes(prefix: str, hidden: int, ffn: int) -> Shapes:
    rows = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    return {f"{prefix}{part}_proj.weight": shape for part, shape in rows.items()}


def _moe_shapes(config: HfConfig) -> Shapes:
    hidden, ffn, experts = config["hidden_size"], config["moe_intermediate_size"], num_experts(config)
    shapes: Shapes = {"mlp.gate.weight": (experts, hidden)}
    if config["model_type"] == "qwen3_5_moe_text":
        shapes["mlp.experts.gate_up_proj"] = (experts, 2 * ffn, hidden)
        shapes["mlp.experts.down_proj"] = (experts, hidden, ffn)
    else:
        for e in range(experts):
            shapes |= _mlp_shapes(f"mlp.experts.{e}.", hidden, ffn)
    if shared := config.get("shared_expert_intermediate_size"):
        shapes |= _mlp_shapes("mlp.shared_expert.", hidden, shared)
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    if config["model_type"] in NEXTN:
        shapes["mlp.gate.e_score_correction_bias"] = (experts,)
        shapes |= _mlp_shapes("mlp.shared_experts.", hidden, config["n_shared_experts"] * ffn)
    return shapes


def _nextn_shapes(config: HfConfig, prefix: str) -> Shapes:
    hidden = config["hidden_size"]
    shapes: Shapes = {f"{prefix}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, prefix, sparse=True)


def _mtp_shapes(config: HfConfig, prefix: str) -> Shapes:
    hidden = config["hidden_size"]
    shapes: Shapes = {
        f"{prefix}{name}.weight": (hidden,) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    shapes[prefix + "input_proj.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, prefix)


def _qwen_mtp_shapes(config: HfConfig, index: int) -> Shapes:
    hidden = config["hidden_size"]
    shapes: Shapes = {
        f"mtp.{name}.weight": (hidden,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    return shapes | _layer_shapes(config, f"mtp.layers.{index}.", sparse=num_experts(config) > 0)
