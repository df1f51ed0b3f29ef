#!/usr/bin/env python3
"""Re-express a tied, bias-free llama-form folder as a MiMo model with a trained MTP head.

The result computes exactly what the source computes: q/k/v biases are zero, ``lm_head.weight`` is a copy of the
embedding, everything else is unchanged. The head's ``model.mtp_layers.*`` tensors, ``config.json`` and
``configuration_mimo.py`` come from the head's folder, all other files from the source folder.

Only headers are parsed; the bytes of each tensor are copied in blocks from file to file.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

Config = dict[str, Any]

BLOCK = 1 << 22
BYTES_PER_VALUE = {"BF16": 2, "F16": 2, "F32": 4}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SAME_FIELDS = (
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class Tensor:
    """Where a tensor's bytes are: ``size`` bytes at ``offset`` of ``file``, or zeros where ``file`` is None."""

    dtype: str
    shape: tuple[int, ...]
    file: Path | None
    offset: int
    size: int


def read_header(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), path, 8 + length + begin, end - begin)
    return tensors


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files; raises where a name occurs twice or there is none."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = read_header(path)
        if tensors.keys() & part.keys():
            raise ValueError(f"{path} repeats {sorted(tensors.keys() & part.keys())[0]}")
        tensors |= part
    if not tensors:
        raise ValueError(f"no safetensors file with tensors in {folder}")
    return tensors


def read_config(folder: Path) -> Config:
    """The folder's config.json."""
    config: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def rope_settings(config: Config) -> tuple[float, Config]:
    """Rope base and scaling of a config in either style; scaling is empty for plain rope."""
    rope: Config = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", config.get("rope_theta", 10000.0)))
    return theta, {} if rope.get("rope_type", "default") == "default" else rope


def check_configs(source: Config, head: Config) -> None:
    """Raise unless the head's MiMo config describes the source model exactly."""
    if source["model_type"] != "llama" or head["model_type"] != "mimo":
        raise ValueError(f"need a llama source and a mimo head: {source['model_type']!r}, {head['model_type']!r}")
    if not source.get("tie_word_embeddings") or source.get("attention_bias") or source.get("mlp_bias"):
        raise ValueError("the source must be tied and have no biases")
    differing = [key for key in SAME_FIELDS if source.get(key) != head.get(key)]
    width = source["hidden_size"] // source["num_attention_heads"]
    if (source.get("head_dim") or width) != (head.get("head_dim") or width):
        differing.append("head_dim")
    if not math.isclose(source["rms_norm_eps"], head["rms_norm_eps"], rel_tol=1e-6):
        differing.append("rms_norm_eps")
    if rope_settings(source) != rope_settings(head):
        differing.append("rope")
    if differing:
        raise ValueError(f"source and head disagree in {', '.join(differing)}")


def zero_bias(weight: Tensor) -> Tensor:
    """A zero bias for a projection ``[out, in]``, in the weight's dtype."""
    rows = weight.shape[0]
    return Tensor(weight.dtype, (rows,), None, 0, rows * BYTES_PER_VALUE[weight.dtype])


def mimo_tensors(source: dict[str, Tensor], head: dict[str, Tensor], layers: int, depth: int) -> dict[str, Tensor]:
    """All tensors of the MiMo form, sorted by name."""
    tensors = dict(source)
    tensors[HEAD] = source[EMBEDDING]
    for i in range(layers):
        for part in "qkv":
            stem = f"model.layers.{i}.self_attn.{part}_proj"
            tensors[stem + ".bias"] = zero_bias(source[stem + ".weight"])
    mtp = {name: tensor for name, tensor in head.items() if name.startswith("model.mtp_layers.")}
    found = {name.split(".")[2] for name in mtp}
    if len(mtp) != len(head) or found != {str(i) for i in range(depth)}:
        raise ValueError(f"the head must have the tensors of {depth} MTP layers and nothing else")
    return dict(sorted((tensors | mtp).items()))


def blocks(tensor: Tensor) -> Iterator[bytes]:
    """The tensor's bytes, block by block."""
    left = tensor.size
    if tensor.file is None:
        yield bytes(left)
        return
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        while left:
            block = file.read(min(left, BLOCK))
            if not block:
                raise ValueError(f"{tensor.file} is truncated")
            left -= len(block)
            yield block


def write_file(tensors: dict[str, Tensor], file: BinaryIO) -> None:
    """Write one safetensors file, streaming each tensor."""
    header: Config = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.size
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        for block in blocks(tensor):
            file.write(block)


def copy_sidecars(source: Path, head: Path, out: Path) -> None:
    """Copy every file that is neither weights nor config from the source, config and its code from the head."""
    for path in sorted(source.rglob("*")):
        weights = path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json")
        target = out / path.relative_to(source)
        if path.is_file() and not weights and target != out / "config.json":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name in ("config.json", "configuration_mimo.py"):
        shutil.copyfile(head / name, out / name)


def mimo_form(source: str | Path, head: str | Path, out: str | Path) -> Path:
    """Write the MiMo form of ``source`` with the MTP head of ``head`` to the new or empty folder ``out``."""
    source, head, out = Path(source), Path(head), Path(out)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty")
    config = read_config(head)
    check_configs(read_config(source), config)
    stored, trained = read_folder(source), read_folder(head)
    dtypes = {tensor.dtype for tensor in (stored | trained).values()}
    if len(dtypes) != 1 or not dtypes <= BYTES_PER_VALUE.keys():
        raise ValueError(f"source and head must share one floating dtype: {sorted(dtypes)}")
    tensors = mimo_tensors(stored, trained, config["num_hidden_layers"], config["num_nextn_predict_layers"])
    out.mkdir(parents=True, exist_ok=True)
    copy_sidecars(source, head, out)
    with (out / "model.safetensors").open("wb") as file:
        write_file(tensors, file)
    return out


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Re-express a llama-form folder as MiMo with a trained MTP head.")
    parser.add_argument("source", type=Path, metavar="SMOLLM2", help="tied, bias-free llama-form folder")
    parser.add_argument("head", type=Path, metavar="HEAD", help="folder with model.mtp_layers.* and a MiMo config")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    options = parser.parse_args(argv)
    try:
        print(mimo_form(options.source, options.head, options.out))
    except (OSError, ValueError, KeyError, struct.error) as error:
        print(f"mimo_form: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
