"""Draft heads as their producers publish or write them (draft_heads.json): config fields, the layout of their tensors.

Shapes follow from the config by the layout; where a source quotes shapes, the two are held against each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]
Head = dict[str, Any]
BYTES = {"BF16": 2, "I64": 8, "BOOL": 1}


def load() -> dict[str, Head]:
    heads: dict[str, Head] = json.loads(Path(__file__).with_suffix(".json").read_text())["heads"]
    return heads


def config(head: Head) -> dict[str, Any]:
    """As published, with what the source does not quote filled in."""
    found, made = dict(head["config"]), head.get("made", {})
    nested = {key: {**found[key], **value} for key, value in made.items() if isinstance(value, dict)}
    return {**found, **made, **nested}


def layer_config(head: Head) -> dict[str, Any]:
    whole = config(head)
    return dict(whole.get("transformer_layer_config", whole))


def tensors(head: Head) -> dict[str, Shape]:
    """Every tensor of an EAGLE or EAGLE-3 head in its producer's layout."""
    whole, c = config(head), layer_config(head)
    h, f, v, heads = (c[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"))
    d = c.get("head_dim") or h // heads
    q, kv = heads * d, c.get("num_key_value_heads", heads) * d
    three, at = head["kind"] == "eagle3", head["tensors"]
    width = 2 * h if three else h
    found: dict[str, Shape] = {
        f"{at}self_attn.{n}_proj.weight": (r, width) for n, r in zip("qkv", (q, kv, kv), strict=True)
    }
    found |= {f"{at}self_attn.o_proj.weight": (h, q), f"{at}post_attention_layernorm.weight": (h,)}
    found |= {
        f"{at}mlp.gate_proj.weight": (f, h),
        f"{at}mlp.up_proj.weight": (f, h),
        f"{at}mlp.down_proj.weight": (h, f),
    }
    if not three:
        bias = {"fc.bias": (h,)} if whole.get("bias", True) else {}
        return found | {"fc.weight": (h, 2 * h), "embed_tokens.weight": (v, h)} | bias
    dv = whole.get("draft_vocab_size", v)
    ids = whole.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", range(3))
    found |= {f"{at}hidden_norm.weight": (h,), f"{at}input_layernorm.weight": (h,)}
    found |= {"fc.weight": (h, len(ids) * h), "norm.weight": (h,), "lm_head.weight": (dv, h)}
    if whole.get("fc_norm"):
        found |= {f"fc_norm.{i}.weight": (h,) for i in range(len(ids))}
    maps: dict[str, Shape] = {"d2t": (dv,), "t2d": (v,)} if dv < v else {}
    return {name: shape for name, shape in (found | maps).items() if name not in head.get("without", ())}


def block_tensors(head: Head) -> dict[str, Shape]:
    """A few of a DFlash-like head, whose layers attend to the target's features: enough to be taken for EAGLE's."""
    c = layer_config(head)
    h = c["hidden_size"]
    return {"fc.weight": (h, 5 * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}


def write(folder: Path, head: Head) -> Path:
    """The head with right headers and holes for data."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(head)))
    found: Mapping[str, Shape] = block_tensors(head) if head["tensors"] == "block" else tensors(head)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in found.items():
        dtype = {"d2t": "I64", "t2d": "BOOL"}.get(name, "BF16")
        begin, end = end, end + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("xb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return folder


def write_target(folder: Path, head: Head, layers: int) -> Path:
    """The config of a model that the head could be for."""
    c = layer_config(head)
    same = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
    folder.mkdir(parents=True)
    own = {
        "model_type": "any",
        "architectures": ["Any"],
        "num_hidden_layers": layers,
        "max_position_embeddings": 1 << 20,
    }
    (folder / "config.json").write_text(json.dumps({**own, **{name: c[name] for name in same}}))
    return folder
