"""Tiny models of which it is known what they say, made with torch and safetensors; nothing here asks ckpt_tools.

A *clockwork* model says after every token one fixed other one: its layers add next to nothing, and row i of its output
layer is the embedding of the token before token i. Its heads do the same, so their drafts are right, or as often wrong as
`noise` makes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ADDED = ("o_proj.weight", "down_proj.weight", "out_proj.weight")  # what a layer adds to the stream ends in one of these
QUIET = 0.02
START = [5, 9, 11, 3]


def successor(vocab: int) -> torch.Tensor:
    """The token after each token: one cycle through all of them."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(3))
    after = torch.empty(vocab, dtype=torch.long)
    after[order] = order.roll(-1)
    return after


def table(vocab: int, width: int) -> torch.Tensor:
    return torch.randn(vocab, width, generator=torch.Generator().manual_seed(4))


def output(rows: torch.Tensor) -> torch.Tensor:
    """Row i is the embedding of the token that i comes after."""
    turned = torch.empty_like(rows)
    turned[successor(len(rows))] = rows
    return turned


def clockwork(folder: Path, noise: float = 0.0, quiet: float = QUIET) -> Path:
    """Turn a tiny checkpoint (untied, float32, one file) into a clockwork one, its MTP layers as well."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    embed = next(name for name in tensors if name.endswith("embed_tokens.weight") and ".layers." not in name)
    vocab, width = tensors[embed].shape
    zero_centred = json.loads((folder / "config.json").read_text())["model_type"].startswith("qwen3_")
    rows = table(vocab, width)
    for name, tensor in tensors.items():
        if name.endswith(ADDED) or (name.endswith("down_proj") and tensor.dim() == 3):
            tensor *= quiet
        elif name.endswith(
            ("enorm.weight", "hnorm.weight", "norm.weight", "norm_embedding.weight", "norm_hidden.weight")
        ):
            tensor.fill_(0.0 if zero_centred else 1.0)
        elif name.endswith(("eh_proj.weight", "mtp.fc.weight", "input_proj.weight")):
            tensor.copy_(joint(width, noise, hidden_first=name.endswith("input_proj.weight")))
        elif name == embed or name.endswith(".embed_tokens.weight"):
            tensor.copy_(rows)
        elif name == HEAD or name.endswith("shared_head.head.weight"):
            tensor.copy_(output(rows))
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def joint(width: int, noise: float, hidden_first: bool) -> torch.Tensor:
    """A joint projection that hands the embedding on."""
    wrong = torch.randn(width, width, generator=torch.Generator().manual_seed(5)) * noise / width**0.5
    halves = [torch.eye(width) + wrong, torch.zeros(width, width)]
    return torch.cat(halves[::-1] if hidden_first else halves, dim=1)


def head_config(target: Path, architecture: str, **more: Any) -> dict[str, Any]:
    """The config of an EAGLE head of a llama target."""
    config = json.loads((target / "config.json").read_text())
    return config | {"architectures": [architecture], "num_hidden_layers": 1} | more


def layer(config: dict[str, Any], width: int, seed: int = 6) -> Tensors:
    """One quiet decoder layer whose attention reads `width` inputs, by names inside the layer."""
    h, f, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (h, q),
        "mlp.gate_proj.weight": (f, h),
        "mlp.up_proj.weight": (f, h),
        "mlp.down_proj.weight": (h, f),
    }
    made = {name: torch.randn(shape, generator=generator) * 0.05 for name, shape in shapes.items()}
    made |= {name: tensor * QUIET for name, tensor in made.items() if name.endswith(ADDED)}
    return made | {"post_attention_layernorm.weight": torch.ones(h)}


def eagle(folder: Path, target: Path, noise: float = 0.0) -> Path:
    """An EAGLE head of a clockwork llama."""
    config = head_config(target, "LlamaForCausalLMEagle")
    h = config["hidden_size"]
    tensors = {f"layers.0.{name}": tensor for name, tensor in layer(config, h).items()}
    tensors |= {"fc.weight": joint(h, noise, hidden_first=False), "fc.bias": torch.zeros(h)}
    return write(folder, config, tensors)


def eagle3(folder: Path, target: Path, kept: list[int] | None = None, seed: int = 6, sharpness: float = 1.0) -> Path:
    """An EAGLE-3 head of a clockwork llama: fc turns the state of a token into the embedding of the next.

    Its output layer needs no more, so the first draft is right; later ones are not, since what is fed back is not turned
    again. `kept` are the target ids of a reduced draft vocabulary, `sharpness` is what its logits are times. Of its three
    states it uses the first.
    """
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    config = head_config(target, "LlamaForCausalLMEagle3", draft_vocab_size=len(kept) if kept else vocab)
    h = config["hidden_size"]
    rows = table(vocab, h)
    turn = torch.linalg.lstsq(rows, rows[successor(vocab)]).solution.T
    tensors = {f"midlayer.{name}": tensor for name, tensor in layer(config, 2 * h, seed).items()}
    tensors |= {f"midlayer.{name}.weight": torch.ones(h) for name in ("input_layernorm", "hidden_norm")}
    tensors |= {"fc.weight": torch.cat([turn, torch.zeros(h, 2 * h)], dim=1), "norm.weight": torch.ones(h)}
    tensors["lm_head.weight"] = (output(rows)[kept] if kept else output(rows)) * sharpness
    if kept:
        ids = torch.tensor(kept)
        tensors["d2t"] = ids - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return write(folder, config, tensors)


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_prompts(path: Path, *prompts: list[int]) -> Path:
    path.write_text(json.dumps(list(prompts) or [START]))
    return path
