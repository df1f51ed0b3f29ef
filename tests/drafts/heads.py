"""Heads and targets to damage: the real trained ones of tests/assets, and small synthetic ones.

Written with safetensors' library from literal shapes; nothing here asks ckpt_tools.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ASSETS = Path(__file__).resolve().parents[1] / "assets"
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
Tensors = dict[str, torch.Tensor]


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def asset(kind: str, folder: Path) -> Path:
    """A copy of a real head: "mtp", "eagle" or "eagle3" of SmolLM2."""
    return Path(shutil.copytree(ASSETS / f"smollm2-{kind}", folder))


def target_of(kind: str, folder: Path) -> Path:
    """The config of the target of a real head, without weights; the MTP head's is SmolLM2 in MiMo's form."""
    if kind != "mtp":
        return write_config(folder, SMOLLM2)
    return write_config(folder, json.loads((ASSETS / "smollm2-mtp" / "config.json").read_text()))


def values(name: str, *shape: int) -> torch.Tensor:
    """Random, the same for the same name."""
    generator = torch.Generator().manual_seed(sum(name.encode()) + len(shape))
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def target_config(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 2,
        "vocab_size": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return config | changes


def target(folder: Path, weights: bool = False, **changes: Any) -> Path:
    """A Llama of 12 layers of width 8; row i of its embedding is i, of its lm_head -i."""
    config = target_config(**changes)
    write_config(folder, config)
    if weights:
        save_file(llama_tensors(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def llama_tensors(config: Mapping[str, Any]) -> Tensors:
    h, v = config["hidden_size"], config["vocab_size"]
    rows = torch.arange(v, dtype=torch.bfloat16).repeat_interleave(h).reshape(v, h)
    found = {"model.embed_tokens.weight": rows, "model.norm.weight": values("norm", h)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = -rows
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        found |= {at + name: values(at + name, *shape) for name, shape in block(config, h).items()}
        found[at + "input_layernorm.weight"] = values(at + "in", h)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def block(config: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one decoder layer whose q, k and v take `width` inputs; without its input norm."""
    h, f = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    return {
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (h, q),
        "mlp.gate_proj.weight": (f, h),
        "mlp.up_proj.weight": (f, h),
        "mlp.down_proj.weight": (h, f),
        "post_attention_layernorm.weight": (h,),
    }


def save_head(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    write_config(folder, config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def eagle3(folder: Path, aux: int = 3, wide: int | None = None, **changes: Any) -> Path:
    """An EAGLE-3 head as SGLang reads it: draft vocabulary 8 of 32, `aux` features of width `wide`."""
    config = target_config(num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=8) | changes
    h, v, dv = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    tensors = {"midlayer." + name: values(name, *shape) for name, shape in block(config, 2 * h).items()}
    tensors |= {f"midlayer.{name}.weight": values(name, h) for name in ("input_layernorm", "hidden_norm")}
    tensors |= {"fc.weight": values("fc", h, aux * (wide or h)), "norm.weight": values("norm", h)}
    rows = v if dv is None else dv
    tensors["lm_head.weight"] = values("lm_head", rows, h)
    if rows < v:
        ids = IDS if rows == 8 and v == 32 else [3 * i + i % 2 for i in range(rows)]
        tensors["d2t"] = torch.tensor(ids) - torch.arange(rows)
        tensors["t2d"] = torch.zeros(v, dtype=torch.bool).index_fill(0, torch.tensor(ids), True)
    return save_head(folder, config, tensors)


IDS = [0, 2, 3, 7, 8, 15, 20, 31]


def eagle(folder: Path, **changes: Any) -> Path:
    """An EAGLE-1 head as SGLang reads it."""
    config = target_config(num_hidden_layers=1, architectures=["LlamaForCausalLMEagle"]) | changes
    h = config["hidden_size"]
    tensors = {"layers.0." + name: values(name, *shape) for name, shape in block(config, h).items()}
    tensors |= {"fc.weight": values("fc", h, 2 * h), "fc.bias": values("bias", h)}
    return save_head(folder, config, tensors)


def write_tokenizer(folder: Path, used: int, **other: str) -> None:
    """A tokenizer of `used` ids; `other` are the texts of some of them, by "t<id>"."""
    tokens = {other.get(f"t{i}", f"tok{i}"): i for i in range(used)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens, "merges": []}, "added_tokens": []}))
