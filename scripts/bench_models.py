"""Synthetic Hugging Face models of a given size for benchmarks: right names and shapes, values from a repeated block."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]
Shape = tuple[int, ...]
Tensors = dict[str, tuple[str, Shape]]  # name -> (dtype, shape)

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 6144, 16, 8, 128, 32768
EXPERTS, EXPERT_FFN, BLOCK = 64, 768, 128
BLOCK_VALUES, SHARD_TENSORS = 1 << 25, 400
ITEM = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
CONFIG: Record = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 1e6,
    "max_position_embeddings": 512,
}
MOE: Record = {
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "moe_intermediate_size": EXPERT_FFN,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
}
FAMILIES: dict[str, Record] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False},
    "mimo": {"architectures": ["MiMoForCausalLM"], "attention_bias": True, "num_nextn_predict_layers": 1},
    "glm4_moe": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        **MOE,
    },
}


def layer(family: str, prefix: str, fp8: bool) -> Tensors:
    """One decoder layer."""
    rows = {"q_proj": HEADS * HEAD_DIM, "k_proj": KV_HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}
    weights: dict[str, Shape] = {f"self_attn.{name}": (size, HIDDEN) for name, size in rows.items()}
    weights["self_attn.o_proj"] = (HIDDEN, HEADS * HEAD_DIM)
    small: Tensors = {f"{name}_layernorm.weight": ("BF16", (HIDDEN,)) for name in ("input", "post_attention")}
    if family != "qwen3":
        small |= {f"self_attn.{name}.bias": ("BF16", (size,)) for name, size in rows.items()}
    if family != "mimo":
        small |= {f"self_attn.{name}_norm.weight": ("BF16", (HEAD_DIM,)) for name in "qk"}
    for mlp, size in _mlps(family):
        weights |= {f"{mlp}.{name}_proj": (size, HIDDEN) for name in ("gate", "up")}
        weights[f"{mlp}.down_proj"] = (HIDDEN, size)
    if family == "glm4_moe":
        small["mlp.gate.weight"] = ("BF16", (EXPERTS, HIDDEN))
        small["mlp.gate.e_score_correction_bias"] = ("F32", (EXPERTS,))
    for name, shape in weights.items():
        small[f"{name}.weight"] = ("F8_E4M3" if fp8 else "BF16", shape)
        if fp8:
            small[f"{name}.weight_scale_inv"] = ("F32", (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK)))
    return {prefix + name: entry for name, entry in small.items()}


def _mlps(family: str) -> Iterator[tuple[str, int]]:
    if family != "glm4_moe":
        yield "mlp", FFN
        return
    yield "mlp.shared_experts", EXPERT_FFN
    for expert in range(EXPERTS):
        yield f"mlp.experts.{expert}", EXPERT_FFN


def model(family: str, layers: int, fp8: bool) -> Tensors:
    """The whole model, MTP layer included."""
    vocab = ("BF16", (VOCAB, HIDDEN))
    tensors: Tensors = {"model.embed_tokens.weight": vocab}
    for i in range(layers):
        tensors |= layer(family, f"model.layers.{i}.", fp8)
    head = {"mimo": "model.mtp_layers.0.", "glm4_moe": f"model.layers.{layers}."}.get(family)
    frame = {
        "mimo": ("input_proj", ("token_layernorm", "hidden_layernorm", "final_layernorm")),
        "glm4_moe": ("eh_proj", ("enorm", "hnorm", "shared_head.norm")),
    }
    if head:
        joint, norms = frame[family]
        tensors |= layer(family, head, fp8) | {f"{head}{joint}.weight": ("BF16", (HIDDEN, 2 * HIDDEN))}
        tensors |= {f"{head}{name}.weight": ("BF16", (HIDDEN,)) for name in norms}
    return tensors | {"model.norm.weight": ("BF16", (HIDDEN,)), "lm_head.weight": vocab}


def nbytes(entry: tuple[str, Shape]) -> int:
    """Bytes of one tensor."""
    return ITEM[entry[0]] * int(np.prod(entry[1]))


def blocks() -> dict[str, memoryview]:
    """Random bytes per dtype: bfloat16 of ordinary magnitude, float8 without NaN, scales between 0.5 and 1."""
    random = np.random.default_rng(0)
    noise = random.standard_normal(BLOCK_VALUES, dtype=np.float32) * np.float32(0.05)
    codes = random.integers(0, 256, 2 * BLOCK_VALUES, dtype=np.uint8) & 0xF7
    scales = (random.random(1 << 20, dtype=np.float32) + 1) / 2
    return {
        "BF16": memoryview((noise.view(np.uint32) >> 16).astype("<u2").tobytes()),
        "F8_E4M3": memoryview(codes.tobytes()),
        "F32": memoryview(scales.tobytes()),
    }


def write_shard(path: Path, tensors: Tensors, data: dict[str, memoryview], first: int) -> None:
    """Write one shard; tensor number ``k`` of the model starts at its own place of the repeated block."""
    header: Record = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + nbytes((dtype, shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for k, entry in enumerate(tensors.values(), first):
            block = data[entry[0]]
            left, at = nbytes(entry), (k * 4 * 1_000_003) % len(block)
            while left:
                left, at = left - file.write(block[at : at + left]), 0


def make_model(family: str, size: int, out: Path, fp8: bool = False) -> None:
    """Write an HF folder of about ``size`` bytes."""
    fixed = sum(map(nbytes, model(family, 0, fp8).values()))
    layers = max(1, round((size - fixed) / sum(map(nbytes, layer(family, "", fp8).values()))))
    out.mkdir(parents=True)
    tensors, data = model(family, layers, fp8), blocks()
    starts = range(0, len(tensors), SHARD_TENSORS)
    where: dict[str, str] = {}
    for i, first in enumerate(starts, 1):
        part = dict(list(tensors.items())[first : first + SHARD_TENSORS])
        where |= dict.fromkeys(part, f"model-{i:05d}-of-{len(starts):05d}.safetensors")
        write_shard(out / where[next(iter(part))], part, data, first)
    index = {"metadata": {"total_size": sum(map(nbytes, tensors.values()))}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    config = CONFIG | FAMILIES[family] | {"model_type": family, "num_hidden_layers": layers}
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (out / "config.json").write_text(json.dumps(config, indent=2))
