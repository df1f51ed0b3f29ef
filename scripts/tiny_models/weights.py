"""Values by name and seed, quantised where wanted, and the files that hold them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from .forms import CHANNEL, DTYPES, EMBEDDING, NOT_FP8, STYLE_VERSION, Config, Family, Fp8, Shapes


def tensor_value(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """``0.05 * randn`` of the given shape (around 1 for norms), seeded by the name: order plays no part."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    value = torch.randn(shape, generator=generator) * 0.05
    return (value + 1 if re.search(r"norm[^.]*\.weight$", name) else value).to(dtype)


def quantised(tensors: Mapping[str, torch.Tensor], blocks: Fp8, scale_dtype: str) -> dict[str, torch.Tensor]:
    """Linear weights in F8_E4M3, each with the scales of its blocks (or output channels) under a name of their own."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not name.endswith(".weight") or NOT_FP8.search(name):
            found[name] = tensor
            continue
        rows, columns = (1, tensor.shape[1]) if isinstance(blocks, str) else blocks
        found[name], scales = block_quantised(tensor.float(), rows, columns, DTYPES[scale_dtype])
        found[name + ("_scale" if blocks == CHANNEL else "_scale_inv")] = scales
    return found


def block_quantised(
    value: torch.Tensor, rows: int, columns: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float8 matrix and its grid of scales; blocks at the lower and right edge are smaller."""
    grid = -(-value.shape[0] // rows), -(-value.shape[1] // columns)
    whole = torch.zeros(grid[0] * rows, grid[1] * columns)
    whole[: value.shape[0], : value.shape[1]] = value
    tiles = whole.view(grid[0], rows, grid[1], columns)
    largest = tiles.abs().amax(dim=(1, 3))
    scales = torch.where(largest == 0, 1, largest / torch.finfo(torch.float8_e4m3fn).max).to(scale_dtype)
    scaled = (tiles / scales.float()[:, None, :, None]).clamp(-448, 448).view_as(whole)
    return scaled[: value.shape[0], : value.shape[1]].to(torch.float8_e4m3fn), scales


def fp8_config(blocks: Fp8) -> Config:
    """The quantization_config of such a release."""
    if blocks == CHANNEL:
        return {"format": "float-quantized", "quant_method": "compressed-tensors", "quantization_status": "compressed"}
    own = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}
    return own | {"weight_block_size": list(blocks)}


def fill(shapes: Shapes, copies: Mapping[str, str], family: Family, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint; raises if two of them are equal without being declared copies."""
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        keep = family.float32 is not None and re.search(family.float32, name) is not None
        tensors[name] = tensor_value(name, shape, torch.float32 if keep else DTYPES[dtype], seed)
    contents = {tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors.values()}
    if len(contents) != len(tensors):
        raise ValueError("two tensors have the same value; choose another seed or larger sizes")
    for name, source in copies.items():
        tensors[name] = tensors[source if source in tensors else family.prefix + EMBEDDING].clone()
    return tensors


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
