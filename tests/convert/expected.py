"""What a torch-dist directory must hold, said with torch from the Hugging Face tensors alone."""

from __future__ import annotations

from typing import Any

import torch

from tests.checkpoints import Tensors

FUSED = {"attention": "self_attention.linear_qkv.layer_norm_weight", "mlp": "mlp.linear_fc1.layer_norm_weight"}
SEPARATE = {"attention": "input_layernorm.weight", "mlp": "pre_mlp_layernorm.weight"}


def expected_megatron(
    config: dict[str, Any],
    hf: Tensors,
    padded_vocab: int,
    *,
    mtp: int = 0,
    stacked: bool = True,
    norms: str = "fused",
    mtp_name: str = "transformer_layer",
) -> Tensors:
    """Every Megatron tensor by its on-disk name."""
    names = FUSED if norms == "fused" else SEPARATE
    found = {
        "embedding.word_embeddings.weight": padded(hf["model.embed_tokens.weight"], padded_vocab),
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
    }
    if not config["tie_word_embeddings"]:
        found["output_layer.weight"] = padded(hf["lm_head.weight"], padded_vocab)
    layers = [layer(config, hf, f"model.layers.{i}.", names) for i in range(config["num_hidden_layers"])]
    if stacked:
        found |= {f"decoder.layers.{key}": torch.stack([one[key] for one in layers]) for key in layers[0]}
    else:
        found |= {f"decoder.layers.{i}.{key}": tensor for i, one in enumerate(layers) for key, tensor in one.items()}
    for i in range(mtp):
        found |= mimo_mtp(config, hf, i, mtp_name, names)
    return found


def padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], tensor.shape[1])])


def layer(config: dict[str, Any], hf: Tensors, at: str, norms: dict[str, str]) -> Tensors:
    found = {
        norms["attention"]: hf[at + "input_layernorm.weight"],
        norms["mlp"]: hf[at + "post_attention_layernorm.weight"],
        "self_attention.linear_qkv.weight": qkv(config, [hf[f"{at}self_attn.{p}_proj.weight"] for p in "qkv"]),
        "self_attention.linear_proj.weight": hf[at + "self_attn.o_proj.weight"],
        "mlp.linear_fc1.weight": torch.cat([hf[at + "mlp.gate_proj.weight"], hf[at + "mlp.up_proj.weight"]]),
        "mlp.linear_fc2.weight": hf[at + "mlp.down_proj.weight"],
    }
    if at + "self_attn.q_proj.bias" in hf:
        found["self_attention.linear_qkv.bias"] = qkv(config, [hf[f"{at}self_attn.{p}_proj.bias"] for p in "qkv"])
    for part in "qk":
        if at + f"self_attn.{part}_norm.weight" in hf:
            found[f"self_attention.{part}_layernorm.weight"] = hf[at + f"self_attn.{part}_norm.weight"]
    for megatron, name in (("mlp.linear_fc2", "mlp.down_proj"), ("self_attention.linear_proj", "self_attn.o_proj")):
        if f"{at}{name}.bias" in hf:
            found[f"{megatron}.bias"] = hf[f"{at}{name}.bias"]
    if at + "mlp.gate_proj.bias" in hf:
        found["mlp.linear_fc1.bias"] = torch.cat([hf[at + "mlp.gate_proj.bias"], hf[at + "mlp.up_proj.bias"]])
    return found


def qkv(config: dict[str, Any], parts: list[torch.Tensor]) -> torch.Tensor:
    """Per key-value group: its query heads, its key head, its value head."""
    groups = config["num_key_value_heads"]
    rest = parts[0].shape[1:]
    return torch.cat([part.view(groups, -1, *rest) for part in parts], dim=1).reshape(-1, *rest)


def mimo_mtp(config: dict[str, Any], hf: Tensors, i: int, name: str, norms: dict[str, str]) -> Tensors:
    """MiMo reads [hidden, embedding], Megatron [embedding, hidden]."""
    at, to = f"model.mtp_layers.{i}.", f"mtp.layers.{i}."
    hidden, embedding = hf[at + "input_proj.weight"].chunk(2, dim=1)
    inner = layer(config, hf, at, norms)
    return {
        to + "enorm.weight": hf[at + "token_layernorm.weight"],
        to + "hnorm.weight": hf[at + "hidden_layernorm.weight"],
        to + "eh_proj.weight": torch.cat([embedding, hidden], dim=1),
        to + "final_layernorm.weight": hf[at + "final_layernorm.weight"],
        **{f"{to}{name}.{key}": tensor for key, tensor in inner.items()},
    }
