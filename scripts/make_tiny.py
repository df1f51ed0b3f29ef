#!/usr/bin/env python3
"""Write a tiny, deterministic Hugging Face checkpoint of a given family.

Names and shapes come from transformers' own model classes (what ``save_pretrained`` writes for a model built from the
very ``config.json`` that is released here), so a checkpoint made by this script is independent of ``ckpt_tools``.
Multi-token-prediction layers, which transformers does not build, are declared in the family table below.

Every value depends on the tensor's name and the seed alone, hence neither on sharding nor on order.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
STYLE_VERSION = {"v4": "4.51.0", "v5": "5.7.0"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Sizes:
    """The sizes of one tiny model; ``head_dim`` is None where the caller left it to the family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int | None
    ffn: int
    vocab: int
    mtp: int

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.heads

    def width(self, symbol: str) -> int:
        """Value of a symbolic dimension: ``h`` hidden, ``2h`` twice hidden, ``v`` vocabulary."""
        return {"h": self.hidden, "2h": 2 * self.hidden, "v": self.vocab}[symbol]


@dataclass(frozen=True)
class Mtp:
    """How a family stores its MTP layers; ``{i}`` is the MTP index and ``{n}`` the layer count plus that index.

    body: prefix under which the names of the last decoder layer are repeated.
    extra: name template -> symbolic dimensions of the tensors around that layer.
    copies: name template -> the tensor of which it is an exact copy.
    """

    body: str
    extra: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """One entry of the table.

    loader: transformers' model_type of the class that supplies names and shapes.
    config: the family's fields of config.json, in the "v4" style, for given sizes.
    default_mtp: MTP layers when the caller does not say.
    float32: regular expression of the names kept in float32 whatever the dtype.
    files: extra files of the release, name -> text.
    """

    loader: str
    config: Callable[[Sizes], Config]
    mtp: Mtp | None = None
    default_mtp: int = 0
    float32: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def base_config(sizes: Sizes, architecture: str, model_type: str, rope_theta: float) -> Config:
    """Fields that every dense decoder release has, in the "v4" style."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": sizes.ffn,
        "max_position_embeddings": 512,
        "model_type": model_type,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": rope_theta,
        "use_cache": True,
        "vocab_size": sizes.vocab,
    }


def llama_config(sizes: Sizes) -> Config:
    """Fields of a Llama 3.x release, scaled rope included."""
    scaling = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    return base_config(sizes, "LlamaForCausalLM", "llama", 500000.0) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": scaling,
    }


def qwen2_config(sizes: Sizes) -> Config:
    """Fields of a Qwen2.5 release, which names no head_dim and no attention_bias."""
    own: Config = {"max_window_layers": sizes.layers, "sliding_window": 512, "use_sliding_window": False}
    if sizes.head_dim is not None:
        own["head_dim"] = sizes.head_dim
    return base_config(sizes, "Qwen2ForCausalLM", "qwen2", 1000000.0) | own


def qwen3_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3 release."""
    return base_config(sizes, "Qwen3ForCausalLM", "qwen3", 1000000) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def mimo_config(sizes: Sizes) -> Config:
    """Fields of a MiMo-7B release."""
    return base_config(sizes, "MiMoForCausalLM", "mimo", 640000) | {
        "attention_bias": True,
        "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "num_nextn_predict_layers": sizes.mtp,
        "rms_norm_eps": 1e-05,
        "sliding_window": 512,
        "use_mrope": False,
        "use_sliding_window": False,
    }


MIMO_MTP = Mtp(
    body="model.mtp_layers.{i}.",
    extra={
        "model.mtp_layers.{i}.token_layernorm.weight": ("h",),
        "model.mtp_layers.{i}.hidden_layernorm.weight": ("h",),
        "model.mtp_layers.{i}.input_proj.weight": ("h", "2h"),
        "model.mtp_layers.{i}.final_layernorm.weight": ("h",),
    },
)

MIMO_CONFIGURATION = '''"""Configuration of a MiMo model: Qwen2 with multi-token-prediction layers."""

from transformers.models.qwen2.configuration_qwen2 import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"

    def __init__(self, *args, num_nextn_predict_layers=0, **kwargs):
        self.num_nextn_predict_layers = num_nextn_predict_layers
        super().__init__(*args, **kwargs)
'''

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", llama_config),
    "qwen2": Family("qwen2", qwen2_config),
    "qwen3": Family("qwen3", qwen3_config),
    "mimo": Family("qwen2", mimo_config, MIMO_MTP, 1, files={"configuration_mimo.py": MIMO_CONFIGURATION}),
}


def to_v5(config: Config) -> Config:
    """Restate a "v4" config in the style of transformers 5: ``dtype`` and ``rope_parameters``, no older spellings."""
    new = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    scaling: Config = config.get("rope_scaling") or {"rope_type": "default"}
    new["rope_parameters"] = dict(sorted({**scaling, "rope_theta": config["rope_theta"]}.items()))
    new["dtype"] = config["torch_dtype"]
    if "max_window_layers" in config:
        new["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
        new["sliding_window"] = None
    return new


def release_config(family: Family, sizes: Sizes, dtype: str, tied: bool, style: str, extra: Config | None) -> Config:
    """The whole config.json of a tiny release, keys sorted as in most releases."""
    config = family.config(sizes) | {"tie_word_embeddings": tied, "torch_dtype": dtype}
    if style == "v5":
        config = to_v5(config)
    config["transformers_version"] = STYLE_VERSION[style]
    return dict(sorted((config | (extra or {})).items()))


def oracle_shapes(loader: str, config: Config) -> Shapes:
    """Names and shapes that transformers' own class writes for this config (tied tensors once, as it does)."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
    from transformers.utils import logging

    hide_progress: Callable[[], None] = logging.disable_progress_bar
    hide_progress()
    build: Callable[[Any], PreTrainedModel] = AutoModelForCausalLM.from_config
    known = {key: value for key, value in config.items() if key not in ("model_type", "auto_map", "architectures")}
    with torch.random.fork_rng():
        model = build(AutoConfig.for_model(loader, **known))
    shapes: Shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="pt") as stored:
                shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def mtp_shapes(mtp: Mtp, sizes: Sizes, decoder: Shapes) -> tuple[Shapes, dict[str, str]]:
    """Names and shapes of all MTP layers, and the names among them that copy another tensor."""
    last = f"model.layers.{sizes.layers - 1}."
    shapes: Shapes = {}
    copies: dict[str, str] = {}
    for i in range(sizes.mtp):
        index = {"i": i, "n": sizes.layers + i}
        body = mtp.body.format(**index)
        shapes |= {body + name[len(last) :]: shape for name, shape in decoder.items() if name.startswith(last)}
        shapes |= {name.format(**index): tuple(map(sizes.width, dims)) for name, dims in mtp.extra.items()}
        copies |= {name.format(**index): source for name, source in mtp.copies.items()}
    return shapes, copies


def tensor_value(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """``0.05 * randn`` of the given shape (around 1 for norms), seeded by the name: order plays no part."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    value = torch.randn(shape, generator=generator) * 0.05
    return (value + 1 if re.search(r"norm[^.]*\.weight$", name) else value).to(dtype)


def fill(shapes: Shapes, copies: Mapping[str, str], family: Family, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint; raises if two of them are equal without being declared copies."""
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        keep = family.float32 is not None and re.search(family.float32, name) is not None
        tensors[name] = tensor_value(name, shape, torch.float32 if keep else DTYPES[dtype], seed)
    contents = {tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors.values()}
    if len(contents) != len(tensors):
        raise ValueError("two tensors have the same value; choose another seed or larger sizes")
    return tensors | {name: tensors[source].clone() for name, source in copies.items()}


def write_weights(tensors: Mapping[str, torch.Tensor], out: Path, shards: int) -> None:
    """One model.safetensors, or ``shards`` files with an index; tensors are dealt in the order of their name's crc."""
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"cannot deal {len(tensors)} tensors to {shards} shards")
    if shards == 1:
        save_file(dict(tensors), out / "model.safetensors", metadata={"format": "pt"})
        return
    dealt = sorted(tensors, key=lambda name: (zlib.crc32(name.encode()), name))
    where = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(dealt)}
    for shard in sorted(set(where.values())):
        part = {name: tensors[name] for name in sorted(tensors) if where[name] == shard}
        save_file(part, out / shard, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where}, True)


def write_json(path: Path, value: Config, sort: bool = False) -> None:
    """Write ``value`` in the usual style of releases: indent 2 and a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=sort) + "\n", encoding="utf-8")


def write_sidecars(out: Path, vocab: int, style: str, files: Mapping[str, str]) -> None:
    """Tokenizer (WordLevel of ``vocab`` entries), generation config, chat templates and the family's own files."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"w{i}" for i in range(len(special), vocab))]
    added = [
        {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for i, word in enumerate(special)
    ]
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "<unk>"}
    absent = {"truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None}
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    write_json(out / "tokenizer.json", absent | tokenizer)
    names: Config = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "x_release_note": "keep me"}
    names |= {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(out / "tokenizer_config.json", names)
    generation = {"bos_token_id": 1, "do_sample": False, "eos_token_id": [2], "repetition_penalty": 1.05}
    write_json(out / "generation_config.json", generation | {"transformers_version": STYLE_VERSION[style]})
    templates = {
        "chat_template.jinja": "{% for m in messages %}<s> {{ m['content'] }} </s>{% endfor %}\n",
        "additional_chat_templates/x.jinja": "{% for m in messages %}{{ m['content'] }} {% endfor %}\n",
    }
    for name, text in {**templates, **files}.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def make_tiny(
    family: str,
    out: str | Path,
    *,
    dtype: str = "bfloat16",
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 128,
    vocab: int = 96,
    tied: bool | None = None,
    mtp: int | None = None,
    shards: int = 1,
    seed: int = 0,
    store_tied_head: bool = False,
    extra_config: Config | None = None,
    config_style: str = "v4",
) -> Path:
    """Write a tiny checkpoint of ``family`` to the new or empty folder ``out`` and return that folder.

    tied: None means untied. mtp: None means the family's own number. store_tied_head: a tied model that stores
    ``lm_head.weight`` all the same, equal to the embedding. extra_config: fields added to, or replacing, those of
    config.json, seen by transformers too. config_style: "v4" (``torch_dtype``, ``rope_theta``) or "v5" (``dtype``,
    ``rope_parameters``).
    """
    entry = FAMILIES.get(family)
    if entry is None:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    if dtype not in DTYPES or config_style not in STYLE_VERSION:
        raise ValueError(f"unknown dtype {dtype!r} or config style {config_style!r}")
    if mtp and entry.mtp is None:
        raise ValueError(f"family {family!r} has no MTP layers")
    if store_tied_head and not tied:
        raise ValueError("store_tied_head needs tied=True")
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    depth = entry.default_mtp if mtp is None else mtp
    sizes = Sizes(layers, hidden, heads, kv_heads, head_dim, ffn, vocab, depth)
    config = release_config(entry, sizes, dtype, bool(tied), config_style, extra_config)
    shapes = oracle_shapes(entry.loader, config)
    copies = {HEAD: EMBEDDING} if store_tied_head else {}
    if entry.mtp is not None:
        added, mtp_copies = mtp_shapes(entry.mtp, sizes, shapes)
        shapes, copies = shapes | added, copies | mtp_copies
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(fill(shapes, copies, entry, dtype, seed), folder, shards)
    write_json(folder / "config.json", config)
    write_sidecars(folder, vocab, config_style, entry.files)
    return folder


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write a tiny, deterministic Hugging Face checkpoint.")
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out", type=Path, help="folder to write, new or empty")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, help="default: hidden / heads")
    parser.add_argument("--ffn", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=96)
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="tie lm_head to the embedding")
    parser.add_argument("--mtp", type=int, help="MTP layers; default: the family's own number")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store-tied-head", action="store_true", help="store lm_head.weight although tied")
    parser.add_argument("--extra-config", type=json.loads, metavar="JSON", help="fields to add to config.json")
    parser.add_argument("--config-style", choices=sorted(STYLE_VERSION), default="v4")
    options = vars(parser.parse_args(argv))
    try:
        print(make_tiny(options.pop("family"), options.pop("out"), **options))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"make_tiny: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
