"""What Megatron's parameters must be, from the Hugging Face tensors alone.

Plain torch; neither Megatron nor the converter is asked.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .hf import (
    DELTA_NET,
    NEXTN,
    HfConfig,
    Tensors,
    head_dim,
    is_latent,
    is_tied,
    moe_layers,
    mtp_layers,
    num_experts,
    query_groups,
)
from .hybrid import expected_layer as hybrid_layer
from .hybrid import is_hybrid

COPIED_IN_EVERY_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}
COPIED_WITH_ATTENTION = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_proj.bias": "self_attn.o_proj.bias",
    "self_attention.core_attention.softmax_offset": "self_attn.sinks",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
COPIED_WITH_DELTA_NET = {
    "self_attention.A_log": "linear_attn.A_log",
    "self_attention.conv1d.weight": "linear_attn.conv1d.weight",
    "self_attention.dt_bias": "linear_attn.dt_bias",
    "self_attention.out_proj.weight": "linear_attn.out_proj.weight",
}
COPIED_WITH_LATENT_ATTENTION = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_q_proj.weight": "self_attn.q_proj.weight",
    "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight",
    "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
    "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
    "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
}
COPIED_WITH_INDEXER = {
    f"self_attention.core_attention.indexer.{mcore}": f"self_attn.indexer.{hf}"
    for mcore, hf in {
        "linear_wq_b.weight": "wq_b.weight",
        "linear_wk.weight": "wk.weight",
        "linear_weights_proj.weight": "weights_proj.weight",
        "k_norm.weight": "k_norm.weight",
        "k_norm.bias": "k_norm.bias",
    }.items()
}
ROUTER = {
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.router.bias": "mlp.gate.bias",
    "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
    "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight",
}
MIMO_MTP_COPIED = {
    "enorm.weight": "token_layernorm.weight",
    "hnorm.weight": "hidden_layernorm.weight",
    "eh_proj.weight": "input_proj.weight",
    "final_layernorm.weight": "final_layernorm.weight",
}
QWEN_MTP_COPIED = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "final_layernorm.weight": "mtp.norm.weight",
}
NEXTN_MTP_COPIED = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "eh_proj.weight": "eh_proj.weight",
    "final_layernorm.weight": "shared_head.norm.weight",
}


def expected_parameters(hf_config: HfConfig, hf_tensors: Tensors, padded_vocab: int) -> Tensors:
    """Every parameter (and the routers' biases) of the one-rank Megatron model by its module name, MTP included."""
    expected = {
        "embedding.word_embeddings.weight": pad_rows(hf_tensors["model.embed_tokens.weight"], padded_vocab),
        "decoder.final_layernorm.weight": hf_tensors["model.norm.weight"],
    }
    if not is_tied(hf_config):
        expected["output_layer.weight"] = pad_rows(hf_tensors["lm_head.weight"], padded_vocab)
    if is_hybrid(hf_config):
        expected["decoder.final_norm.weight"] = expected.pop("decoder.final_layernorm.weight")
        for i in range(hf_config["num_hidden_layers"]):
            expected |= hybrid_layer(hf_config, hf_tensors, i)
        return expected
    sparse = moe_layers(hf_config)
    for i in range(hf_config["num_hidden_layers"]):
        expected |= expected_layer(hf_config, hf_tensors, f"model.layers.{i}.", f"decoder.layers.{i}.", i in sparse)
    for i in range(mtp_layers(hf_config)):
        expected |= expected_mtp(hf_config, hf_tensors, i)
    return expected


def expected_layer(hf_config: HfConfig, hf_tensors: Tensors, source: str, target: str, sparse: bool = False) -> Tensors:
    """One decoder layer: its norms and output projection, the other projections of its attention, its MLP."""
    tensors = {name.removeprefix(source): t for name, t in hf_tensors.items() if name.startswith(source)}
    layer = {mcore: tensors[hf] for mcore, hf in COPIED_IN_EVERY_LAYER.items()}
    if "linear_attn.A_log" in tensors:
        layer |= _delta_net(hf_config, tensors)
    elif is_latent(hf_config):
        copied = COPIED_WITH_LATENT_ATTENTION | COPIED_WITH_INDEXER
        layer |= {mcore: tensors[hf] for mcore, hf in copied.items() if hf in tensors}
    else:
        layer |= _grouped_attention(hf_config, tensors)
    layer |= _experts(hf_config, tensors) if sparse else _gated(tensors, "mlp.", "mlp.")
    return {target + name: tensor for name, tensor in layer.items()}


def _grouped_attention(hf_config: HfConfig, tensors: Tensors) -> Tensors:
    """Grouped QKV with the bias and the norms that are there."""
    found = {mcore: tensors[hf] for mcore, hf in COPIED_WITH_ATTENTION.items() if hf in tensors}
    for kind in ("weight", "bias"):
        parts = [tensors[name] for part in "qkv" if (name := f"self_attn.{part}_proj.{kind}") in tensors]
        if parts:
            if hf_config["model_type"] in DELTA_NET:
                parts[0] = gates_behind_queries(hf_config, parts[0])
            found[f"self_attention.linear_qkv.{kind}"] = grouped_qkv(hf_config, *parts)
    if "self_attn.g_proj.weight" in tensors:
        rows = [found["self_attention.linear_qkv.weight"], tensors["self_attn.g_proj.weight"]]
        found["self_attention.linear_qkv.weight"] = torch.cat(rows)
    return found


def gates_behind_queries(hf_config: HfConfig, q: torch.Tensor) -> torch.Tensor:
    """[query; gate] of every head regrouped per key/value head: all its queries, then all their gates."""
    groups, size, heads = query_groups(hf_config), head_dim(hf_config), hf_config["num_attention_heads"]
    by_head = q.view(groups, heads // groups, 2, size, *q.shape[1:])
    return by_head.transpose(1, 2).reshape(q.shape)


def _delta_net(hf_config: HfConfig, tensors: Tensors) -> Tensors:
    """A gated delta net: the joint projection [q; k; v; z; b; a], copies, and a norm that is zero-centred in Megatron."""
    found = {mcore: tensors[hf] for mcore, hf in COPIED_WITH_DELTA_NET.items()}
    weights = {name.removeprefix("linear_attn.in_proj_"): t for name, t in tensors.items() if ".in_proj_" in name}
    if "qkvz.weight" in weights:
        keys, heads = hf_config["linear_num_key_heads"], hf_config["linear_num_value_heads"]
        values = heads // keys * hf_config["linear_value_head_dim"]
        widths = (*(hf_config["linear_key_head_dim"],) * 2, values, values)
        parts = [
            *_of_every_head(weights["qkvz.weight"], keys, widths),
            *_of_every_head(weights["ba.weight"], keys, (heads // keys,) * 2),
        ]
    else:
        parts = [weights[f"{name}.weight"] for name in ("qkv", "z", "b", "a")]
    found["self_attention.in_proj.weight"] = torch.cat(parts)
    found["self_attention.out_norm.weight"] = tensors["linear_attn.norm.weight"].float() - 1
    return found


def _of_every_head(weight: torch.Tensor, heads: int, widths: tuple[int, ...]) -> list[torch.Tensor]:
    """A weight whose rows are [a, b, ...] of head 0, of head 1, ...: all of a, all of b, ..."""
    by_head = weight.view(heads, sum(widths), -1)
    return [
        part.reshape(heads * width, -1)
        for part, width in zip(torch.split(by_head, list(widths), 1), widths, strict=True)
    ]


def _gated(tensors: Tensors, source: str, target: str) -> Tensors:
    """One gated MLP: [gate; up] and down, with the biases that are there."""
    found: Tensors = {}
    for kind in ("weight", "bias"):
        if f"{source}down_proj.{kind}" in tensors:
            gate, up, down = (tensors[f"{source}{part}_proj.{kind}"] for part in ("gate", "up", "down"))
            found |= {f"{target}linear_fc1.{kind}": torch.cat([gate, up], 0), f"{target}linear_fc2.{kind}": down}
    return found


def _experts(hf_config: HfConfig, tensors: Tensors) -> Tensors:
    """Router, routed experts and the shared expert, if there is one."""
    found = {mcore: tensors[hf] for mcore, hf in ROUTER.items() if hf in tensors}
    for e in range(num_experts(hf_config)):
        target = f"mlp.experts.local_experts.{e}."
        if "mlp.experts.gate_up_proj" in tensors:
            packed = {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}
            found |= {f"{target}{mcore}.weight": tensors[f"mlp.experts.{hf}"][e] for mcore, hf in packed.items()}
        else:
            found |= _gated(tensors, f"mlp.experts.{e}.", target)
    for shared in ("mlp.shared_experts.", "mlp.shared_expert."):
        if f"{shared}gate_proj.weight" in tensors:
            found |= _gated(tensors, shared, "mlp.shared_experts.")
    return found


def grouped_qkv(hf_config: HfConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[all q; all k; all v] regrouped per key/value head: [its q heads, k, v], for weights and biases alike."""
    groups, rest = query_groups(hf_config), q.shape[1:]
    return torch.cat([part.view(groups, -1, *rest) for part in (q, k, v)], 1).reshape(-1, *rest)


def expected_mtp(hf_config: HfConfig, hf_tensors: Tensors, index: int) -> Tensors:
    """One MTP layer; Megatron's projection reads [embedding, hidden], MiMo's [hidden, embedding], all others' like it."""
    target, model_type = f"mtp.layers.{index}.", hf_config["model_type"]
    if model_type in DELTA_NET:
        source, names = f"mtp.layers.{index}.", QWEN_MTP_COPIED
    elif model_type in NEXTN:
        source = f"model.layers.{hf_config['num_hidden_layers'] + index}."
        names = {mcore: source + hf for mcore, hf in NEXTN_MTP_COPIED.items()}
    else:
        source = f"model.mtp_layers.{index}."
        names = {mcore: source + hf for mcore, hf in MIMO_MTP_COPIED.items()}
    layer = {target + mcore: hf_tensors[hf] for mcore, hf in names.items()}
    if model_type == "mimo":
        hidden_half, embedding_half = layer[target + "eh_proj.weight"].chunk(2, 1)
        layer[target + "eh_proj.weight"] = torch.cat([embedding_half, hidden_half], 1)
    inner, sparse = target + "transformer_layer.", f"{source}mlp.gate.weight" in hf_tensors
    return layer | expected_layer(hf_config, hf_tensors, source, inner, sparse)


def pad_rows(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """The vocabulary padded with zero rows."""
    if rows < weight.shape[0]:
        raise ValueError(f"padded vocabulary {rows} is smaller than the {weight.shape[0]} rows there are")
    return functional.pad(weight, (0, 0, 0, rows - weight.shape[0]))
