#!/usr/bin/env python3
"""Write a Hugging Face folder of a public release with right headers and no data.

config.json, the index and the headers of the safetensors files come from the golden lists (tests/golden); the bytes of the
tensors are holes, so a release of 1.3 TB takes a few megabytes of disk and reads as zeros.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden import golden

Shape = tuple[int, ...]
Tensors = dict[str, tuple[Shape, str]]

BITS = {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U8": 8, "BF16": 16, "F16": 16, "F32": 32, "I32": 32, "I64": 64}
MAX_SHARD = 5_000_000_000
UNKNOWN_DTYPE = "BF16"  # what the releases concerned store almost everywhere


def release_tensors(release: golden.Golden, shapes: Mapping[str, Shape] | None = None) -> Tensors:
    """Every tensor of a release with shape and dtype; `shapes` gives those that the list does not know."""
    known = shapes or {}
    found: Tensors = {}
    for name, (shape, dtype) in release.tensors().items():
        if shape is None and name not in known:
            raise ValueError(f"{release.name}: the shape of {name} is not known")
        found[name] = (known[name] if shape is None else shape, dtype or UNKNOWN_DTYPE)
    return found


def nbytes(shape: Shape, dtype: str) -> int:
    """Bytes of a tensor."""
    return prod(shape) * BITS[dtype] // 8


def deal(tensors: Tensors, max_shard: int) -> list[list[str]]:
    """Names per shard, in an order that scatters layers, experts and scales over the shards."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name in sorted(tensors, key=lambda name: (zlib.crc32(name.encode()), name)):
        size = nbytes(*tensors[name])
        if shards[-1] and filled + size > max_shard:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def write_shard(path: Path, names: list[str], tensors: Tensors) -> None:
    """The header of a safetensors file, and a hole as large as its data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        shape, dtype = tensors[name]
        end = offset + nbytes(shape, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + offset)


def make_sparse(
    name: str,
    out: str | Path,
    *,
    max_shard: int = MAX_SHARD,
    shapes: Mapping[str, Shape] | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the sparse folder of the golden `name` to the new folder `out` and return it.

    max_shard: bytes of tensors per file. shapes: those that the golden list does not know. extra_config: fields added to
    config.json, in `text_config` where the golden has one.
    """
    release = golden.load(name)
    tensors = release_tensors(release, shapes)
    folder = Path(out)
    folder.mkdir(parents=True)
    config = release.config
    config.get("text_config", config).update(extra_config or {})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shards = deal(tensors, max_shard)
    where: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        write_shard(folder / file, names, tensors)
        where |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(nbytes(*tensor) for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return folder


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write a Hugging Face folder of a release: headers and holes.")
    parser.add_argument("name", choices=golden.names())
    parser.add_argument("out", type=Path, help="folder to write, new")
    parser.add_argument("--max-shard", type=int, default=MAX_SHARD, help="bytes of tensors per file")
    options = vars(parser.parse_args(argv))
    try:
        print(make_sparse(options.pop("name"), options.pop("out"), **options))
    except (OSError, ValueError) as error:
        print(f"make_sparse: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
