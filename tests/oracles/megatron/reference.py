"""What Megatron's parameters must be, and what Hugging Face computes, from the Hugging Face tensors alone.

Plain torch and transformers; neither Megatron nor the converter is asked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .hf import HfConfig, Tensors, head_dim, is_tied, mtp_layers, query_groups

COPIED_IN_EVERY_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
COPIED_WITH_QK_NORM = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
MIMO_MTP_COPIED = {
    "enorm.weight": "token_layernorm.weight",
    "hnorm.weight": "hidden_layernorm.weight",
    "final_layernorm.weight": "final_layernorm.weight",
}


def expected_parameters(hf_config: HfConfig, hf_tensors: Tensors, padded_vocab: int) -> Tensors:
    """Every parameter of the one-rank (TP1, PP1) Megatron model by its module name, MTP layers included."""
    expected = {
        "embedding.word_embeddings.weight": pad_rows(hf_tensors["model.embed_tokens.weight"], padded_vocab),
        "decoder.final_layernorm.weight": hf_tensors["model.norm.weight"],
    }
    if not is_tied(hf_config):
        expected["output_layer.weight"] = pad_rows(hf_tensors["lm_head.weight"], padded_vocab)
    for i in range(hf_config["num_hidden_layers"]):
        expected |= expected_layer(hf_config, hf_tensors, f"model.layers.{i}.", f"decoder.layers.{i}.")
    for i in range(mtp_layers(hf_config)):
        expected |= expected_mimo_mtp(hf_config, hf_tensors, i)
    return expected


def expected_layer(hf_config: HfConfig, hf_tensors: Tensors, source: str, target: str) -> Tensors:
    """One decoder layer: grouped QKV, [gate; up], and the copies."""
    copied = dict(COPIED_IN_EVERY_LAYER)
    if hf_config["model_type"] == "qwen3":
        copied |= COPIED_WITH_QK_NORM
    layer = {target + mcore: hf_tensors[source + hf] for mcore, hf in copied.items()}
    gate, up = (hf_tensors[f"{source}mlp.{part}_proj.weight"] for part in ("gate", "up"))
    layer[target + "mlp.linear_fc1.weight"] = torch.cat([gate, up], 0)
    kinds = ["weight", "bias"] if hf_config["model_type"] in ("qwen2", "mimo") else ["weight"]
    for kind in kinds:
        parts = [hf_tensors[f"{source}self_attn.{part}_proj.{kind}"] for part in "qkv"]
        layer[f"{target}self_attention.linear_qkv.{kind}"] = grouped_qkv(hf_config, *parts)
    return layer


def grouped_qkv(hf_config: HfConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[all q; all k; all v] regrouped per key/value head: [its q heads, k, v], for weights and biases alike."""
    groups, size, heads = query_groups(hf_config), head_dim(hf_config), hf_config["num_attention_heads"]
    rest = q.shape[1:]
    per_group = [
        q.view(groups, heads // groups * size, *rest),
        k.view(groups, size, *rest),
        v.view(groups, size, *rest),
    ]
    return torch.cat(per_group, 1).reshape((heads + 2 * groups) * size, *rest)


def expected_mimo_mtp(hf_config: HfConfig, hf_tensors: Tensors, index: int) -> Tensors:
    """MiMo's MTP layer; Megatron's projection reads [embedding, hidden] where MiMo's reads [hidden, embedding]."""
    source, target = f"model.mtp_layers.{index}.", f"mtp.layers.{index}."
    hidden_half, embedding_half = hf_tensors[source + "input_proj.weight"].chunk(2, 1)
    layer = {target + mcore: hf_tensors[source + hf] for mcore, hf in MIMO_MTP_COPIED.items()}
    layer[target + "eh_proj.weight"] = torch.cat([embedding_half, hidden_half], 1)
    return layer | expected_layer(hf_config, hf_tensors, source, target + "transformer_layer.")


def pad_rows(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """The vocabulary padded with zero rows."""
    if rows < weight.shape[0]:
        raise ValueError(f"padded vocabulary {rows} is smaller than the {weight.shape[0]} rows there are")
    return functional.pad(weight, (0, 0, 0, rows - weight.shape[0]))


def hf_model(hf_config: HfConfig, hf_tensors: Tensors) -> Any:
    """The transformers model in fp32 with exactly these tensors; MiMo without its MTP layers is a Qwen2 model."""
    import transformers

    model_type = hf_config["model_type"]
    base = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mimo": "Qwen2"}[model_type]
    dropped = ("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
    settings = {key: value for key, value in hf_config.items() if key not in dropped}
    config = getattr(transformers, f"{base}Config")(**settings, attn_implementation="eager")
    with torch.device("meta"):
        model = getattr(transformers, f"{base}ForCausalLM")(config)
    # The rotary table is no weight: to_empty would leave it undefined, so it is made anew from the config.
    model = model.to_empty(device="cpu").float().eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    weights = {name: t.float() for name, t in hf_tensors.items() if not name.startswith("model.mtp_layers.")}
    if is_tied(hf_config):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    return model


@torch.no_grad()
def hf_logits(hf_config: HfConfig, hf_tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Main logits [batch, sequence, vocabulary] in fp32."""
    logits: torch.Tensor = hf_model(hf_config, hf_tensors)(ids).logits
    return logits


@torch.no_grad()
def hf_inverse_frequencies(hf_config: HfConfig, hf_tensors: Tensors) -> torch.Tensor:
    """The rotary frequencies transformers derives from the config, scaling included."""
    frequencies: torch.Tensor = hf_model(hf_config, hf_tensors).model.rotary_emb.inv_freq
    return frequencies


@torch.no_grad()
def hf_mtp_logits(hf_config: HfConfig, hf_tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """MiMo's first MTP layer in its own order: logits [batch, sequence - 1, vocabulary], entry t predicting t + 2.

    h is the main model's hidden state of t after the final norm, e the embedding of token t + 1, and the layer reads
    [norm(h), norm(e)] at rotary position t. Every position attends to itself and what is before.
    """
    if mtp_layers(hf_config) != 1:
        raise NotImplementedError("MTP logits are stated for MiMo with one MTP layer")
    main = hf_model(hf_config, hf_tensors)
    prefix = "model.mtp_layers.0."
    weights = {name.removeprefix(prefix): t.float() for name, t in hf_tensors.items() if name.startswith(prefix)}
    hidden = main.model(ids).last_hidden_state[:, :-1]
    embedding = main.model.embed_tokens(ids[:, 1:])
    both = [
        rms_norm(hidden, weights.pop("hidden_layernorm.weight"), hf_config["rms_norm_eps"]),
        rms_norm(embedding, weights.pop("token_layernorm.weight"), hf_config["rms_norm_eps"]),
    ]
    x = torch.cat(both, -1) @ weights.pop("input_proj.weight").T
    final_norm = weights.pop("final_layernorm.weight")
    x = rms_norm(_qwen2_layer(main, weights, x), final_norm, hf_config["rms_norm_eps"])
    logits: torch.Tensor = main.lm_head(x)
    return logits


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square normalisation."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _qwen2_layer(main: Any, weights: Tensors, x: torch.Tensor) -> torch.Tensor:
    """One Qwen2 decoder layer with these weights over positions 0..S-1, causal."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

    layer = Qwen2DecoderLayer(main.config, 0).eval()
    layer.load_state_dict(weights, strict=True)
    size = x.shape[1]
    positions = torch.arange(size)[None]
    causal = torch.full((1, 1, size, size), float("-inf")).triu(1)
    rotary = main.model.rotary_emb(x, positions)
    result: torch.Tensor = layer(x, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
    return result
