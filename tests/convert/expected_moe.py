"""What a torch-dist directory of the MoE, latent-attention and delta-net families must hold, said with torch alone."""

from __future__ import annotations

from typing import Any

import torch

from tests.checkpoints import Tensors

from .expected import padded, qkv

HEAD_NAMES = {
    "nextn": {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "final_layernorm": "shared_head.norm"},
    "qwen": {
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "eh_proj": "mtp.fc",
        "final_layernorm": "mtp.norm",
    },
}
# The same norm as TransformerEngine's spec and as the local one calls it; the directory holds both.
TWO_NAMES = (
    (".linear_q_up_proj.layer_norm_weight", ".q_layernorm.weight"),
    (".linear_kv_up_proj.layer_norm_weight", ".kv_layernorm.weight"),
    (".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight"),
)


def expected_moe(
    config: dict[str, Any],
    hf: Tensors,
    *,
    stacked: bool = False,
    gdn: str = "mcore",
    dsa: str = "mcore",
    halves: str = "straight",
    rows: int = 128,
) -> Tensors:
    """Every Megatron tensor by its on-disk name; `hf` may hold other towers and copies, which do not take part."""
    prefix = "model.language_model." if "text_config" in config else "model."
    config = config.get("text_config", config)
    count = config["num_hidden_layers"]
    forms = {"gdn": gdn, "dsa": dsa}
    found = {
        "embedding.word_embeddings.weight": padded(hf[f"{prefix}embed_tokens.weight"], rows),
        "decoder.final_layernorm.weight": hf[f"{prefix}norm.weight"],
    }
    if not config["tie_word_embeddings"]:
        found["output_layer.weight"] = padded(hf["lm_head.weight"], rows)
    layers = [layer(config, hf, f"{prefix}layers.{i}.", **forms) for i in range(count)]
    if stacked:
        found |= {f"decoder.layers.{key}": torch.stack([one[key] for one in layers]) for key in layers[0]}
    else:
        found |= {f"decoder.layers.{i}.{key}": value for i, one in enumerate(layers) for key, value in one.items()}
    for i in range(3):
        for at, names in ((f"model.layers.{count + i}.", "nextn"), (f"mtp.layers.{i}.", "qwen")):
            if at + "input_layernorm.weight" in hf:
                found |= {f"mtp.layers.{i}.{key}": value for key, value in head(hf, at, names, halves).items()}
                inner = layer(config, hf, at, **forms)
                found |= {f"mtp.layers.{i}.transformer_layer.{key}": value for key, value in inner.items()}
    return found


def head(hf: Tensors, at: str, names: str, halves: str) -> Tensors:
    start = at if names == "nextn" else ""
    found = {f"{key}.weight": hf[f"{start}{name}.weight"] for key, name in HEAD_NAMES[names].items()}
    if halves == "swapped":
        left, right = found["eh_proj.weight"].chunk(2, dim=1)
        found["eh_proj.weight"] = torch.cat([right, left], dim=1)
    return found


def layer(config: dict[str, Any], hf: Tensors, at: str, *, gdn: str, dsa: str) -> Tensors:
    own = {name[len(at) :]: tensor for name, tensor in hf.items() if name.startswith(at)}
    if "linear_attn.A_log" in own:
        attention = slime_delta_net(own) if gdn == "slime" else delta_net(config, own)
    elif "self_attn.kv_b_proj.weight" in own:
        attention = latent_attention(own) | indexer(own, dsa)
    else:
        attention = grouped_attention(config, own)
    both_norms = "input_layernorm.weight" in attention  # latent attention, whatever its MLP
    mlp = experts(own) if "mlp.gate.weight" in own else dense_mlp(own, both_norms)
    extra = ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")
    return attention | mlp | {name: own[name] for name in extra if name in own}


def grouped_attention(config: dict[str, Any], own: Tensors) -> Tensors:
    parts = [own[f"self_attn.{part}_proj.weight"] for part in "qkv"]
    heads, size = config["num_attention_heads"], config["head_dim"]
    if parts[0].shape[0] == 2 * heads * size:
        # Hugging Face: [query; gate] for every head. Megatron, per group: all query heads, all gate heads.
        groups, rest = config["num_key_value_heads"], parts[0].shape[1]
        parts[0] = parts[0].view(groups, heads // groups, 2, size, rest).transpose(1, 2).reshape(-1, rest)
    found = {
        "self_attention.linear_qkv.layer_norm_weight": own["input_layernorm.weight"],
        "self_attention.linear_qkv.weight": qkv(config, parts),
        "self_attention.linear_proj.weight": own["self_attn.o_proj.weight"],
    }
    if "self_attn.q_proj.bias" in own:
        found["self_attention.linear_qkv.bias"] = qkv(config, [own[f"self_attn.{part}_proj.bias"] for part in "qkv"])
    for part in "qk":
        if f"self_attn.{part}_norm.weight" in own:
            found[f"self_attention.{part}_layernorm.weight"] = own[f"self_attn.{part}_norm.weight"]
    return found


def latent_attention(own: Tensors) -> Tensors:
    names = {
        "input_layernorm": "input_layernorm",
        "self_attention.linear_q_proj": "self_attn.q_proj",
        "self_attention.linear_q_down_proj": "self_attn.q_a_proj",
        "self_attention.q_layernorm": "self_attn.q_a_layernorm",
        "self_attention.linear_q_up_proj": "self_attn.q_b_proj",
        "self_attention.linear_kv_down_proj": "self_attn.kv_a_proj_with_mqa",
        "self_attention.kv_layernorm": "self_attn.kv_a_layernorm",
        "self_attention.linear_kv_up_proj": "self_attn.kv_b_proj",
        "self_attention.linear_proj": "self_attn.o_proj",
    }
    found = {f"{key}.weight": own[f"{name}.weight"] for key, name in names.items() if f"{name}.weight" in own}
    for part in ("q", "kv"):
        if f"self_attention.{part}_layernorm.weight" in found:
            fused = f"self_attention.linear_{part}_up_proj.layer_norm_weight"
            found[fused] = found[f"self_attention.{part}_layernorm.weight"]
    return found


def indexer(own: Tensors, form: str) -> Tensors:
    at = "self_attn.indexer."
    found = {name[len(at) :]: tensor for name, tensor in own.items() if name.startswith(at)}
    if form == "mcore":
        inner = {name if name.startswith("k_norm.") else f"linear_{name}": tensor for name, tensor in found.items()}
        return {f"self_attention.core_attention.indexer.{name}": tensor for name, tensor in inner.items()}
    # slime: within every head of 128 rows the last 64 come first.
    for name in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias"):
        if name in found:
            rope, other = found[name].view(-1, 128, *found[name].shape[1:]).split([64, 64], dim=1)
            found[name] = torch.cat([other, rope], dim=1).view_as(found[name])
    return {f"self_attention.{name}": tensor for name, tensor in found.items()}


def slime_delta_net(own: Tensors) -> Tensors:
    found = {f"self_attention.{name}": tensor for name, tensor in own.items() if name.startswith("linear_attn.")}
    return found | {"self_attention.input_layernorm.weight": own["input_layernorm.weight"]}


def delta_net(config: dict[str, Any], own: Tensors) -> Tensors:
    at = "linear_attn."
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value, ratio = config["linear_key_head_dim"], config["linear_value_head_dim"], value_heads // key_heads
    keys, values = key_heads * key, value_heads * value
    if f"{at}in_proj_qkvz.weight" in own:
        qkvz, ba = own[f"{at}in_proj_qkvz.weight"], own[f"{at}in_proj_ba.weight"]
        h = qkvz.shape[1]
        widths = [key, key, ratio * value, ratio * value]
        parts = [part.reshape(-1, h) for part in qkvz.view(key_heads, -1, h).split(widths, dim=1)]
        parts += [part.reshape(-1, h) for part in ba.view(key_heads, 2 * ratio, h).split(ratio, dim=1)]
    else:
        parts = list(own[f"{at}in_proj_qkv.weight"].split([keys, keys, values]))
        parts += [own[f"{at}in_proj_{name}.weight"] for name in "zba"]
    names = ("query", "key", "value", "z", "beta", "alpha")
    found = {f"in_proj.weight.{name}": part for name, part in zip(names, parts, strict=True)}
    filters = own[f"{at}conv1d.weight"].split([keys, keys, values])
    found |= {f"conv1d.weight.{name}": part for name, part in zip(names[:3], filters, strict=True)}
    found |= {
        "in_proj.layer_norm_weight": own["input_layernorm.weight"],
        "out_norm.weight": own[f"{at}norm.weight"].float() - 1,
        "out_proj.weight": own[f"{at}out_proj.weight"],
        "A_log": own[f"{at}A_log"],
        "dt_bias": own[f"{at}dt_bias"],
    }
    return {f"self_attention.{name}": tensor for name, tensor in found.items()}


def dense_mlp(own: Tensors, both_norms: bool) -> Tensors:
    norm = own["post_attention_layernorm.weight"]
    if "mlp.gate_up_proj.weight" in own:
        fc1 = own["mlp.gate_up_proj.weight"]
    else:
        fc1 = torch.cat([own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]])
    found = {
        "mlp.linear_fc1.layer_norm_weight": norm,
        "mlp.linear_fc1.weight": fc1,
        "mlp.linear_fc2.weight": own["mlp.down_proj.weight"],
    }
    return found | ({"pre_mlp_layernorm.weight": norm} if both_norms else {})


def experts(own: Tensors) -> Tensors:
    at = "mlp.experts."
    if f"{at}gate_up_proj" in own:
        fc1, fc2 = own[f"{at}gate_up_proj"], own[f"{at}down_proj"]
    else:
        count = sum(name.endswith(".down_proj.weight") and name.startswith(at) for name in own)
        fc1, fc2 = (
            torch.stack([torch.cat([own[f"{at}{e}.{p}_proj.weight"] for p in parts]) for e in range(count)])
            for parts in (("gate", "up"), ("down",))
        )
    norm = own["post_attention_layernorm.weight"]
    found = {
        "pre_mlp_layernorm.weight": norm,
        "mlp.linear_fc1.layer_norm_weight": norm,
        "mlp.router.weight": own["mlp.gate.weight"],
        "mlp.experts.experts.linear_fc1.weight": fc1,
        "mlp.experts.experts.linear_fc2.weight": fc2,
    }
    if "mlp.gate.e_score_correction_bias" in own:
        found["mlp.router.expert_bias"] = own["mlp.gate.e_score_correction_bias"]
    for shared in ("mlp.shared_expert.", "mlp.shared_experts."):
        if f"{shared}down_proj.weight" in own:
            both = [own[f"{shared}gate_proj.weight"], own[f"{shared}up_proj.weight"]]
            found["mlp.shared_experts.linear_fc1.weight"] = torch.cat(both)
            found["mlp.shared_experts.linear_fc2.weight"] = own[f"{shared}down_proj.weight"]
    if "mlp.shared_expert_gate.weight" in own:
        found["mlp.shared_experts.gate_weight"] = own["mlp.shared_expert_gate.weight"]
    return found


def under_one_name(tensors: Tensors, which: int) -> Tensors:
    """Norms that are stored under two names under the first or the second of them only, as Megatron itself saves."""

    def other(name: str) -> str | None:
        return next(
            (name.removesuffix(p[1 - which]) + p[which] for p in TWO_NAMES if name.endswith(p[1 - which])), None
        )

    return {name: tensor for name, tensor in tensors.items() if other(name) not in tensors}
