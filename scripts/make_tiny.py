#!/usr/bin/env python3
"""Write a tiny, deterministic Hugging Face checkpoint of a given family.

Names and shapes come from transformers' own model classes (what ``save_pretrained`` writes for a model built from the
very ``config.json`` that is released here), so a checkpoint made by this script is independent of ``ckpt_tools``.
Multi-token-prediction layers, which transformers does not build, are declared in the family table (tiny_models/families.py).

Every value depends on the tensor's name and the seed alone, hence neither on sharding nor on order; quantised weights are
made from such values.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from tiny_models.families import FAMILIES
from tiny_models.forms import CHANNEL, DTYPES, EMBEDDING, HEAD, PACKED, PER_EXPERT, STYLE_VERSION, Config, Fp8, Sizes
from tiny_models.shapes import mtp_shapes, oracle_shapes, release_config, with_experts
from tiny_models.weights import fill, fp8_config, quantised, write_json, write_sidecars, write_weights


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
    config_style: str | None = None,
    experts: int = 12,
    dense: int = 1,
    expert_layout: str | None = None,
    mtp_experts: str | None = None,
    mtp_copies: bool | None = None,
    inv_freq: bool = False,
    keep_float32: bool = True,
    fp8: Fp8 | None = None,
    scale_dtype: str = "float32",
) -> Path:
    """Write a tiny checkpoint of ``family`` to the new or empty folder ``out`` and return that folder.

    tied: None means untied. mtp: None means the family's own number. store_tied_head: a tied model that stores
    ``lm_head.weight`` all the same, equal to the embedding. extra_config: fields added to, or replacing, those of
    the language model's config, seen by transformers too. config_style: "v4" (``torch_dtype``, ``rope_theta``) or "v5"
    (``dtype``, ``rope_parameters``); None means that of the family's releases.

    experts: experts per layer. dense: layers before the first with experts (DeepSeek, GLM). expert_layout, mtp_experts:
    "per-expert" or "packed", in the decoder and in the MTP layers; None means as in the family's releases. mtp_copies:
    whether MTP layers repeat embedding and head. inv_freq: store the rotary buffers of every layer. keep_float32: keep
    those tensors in float32 that the releases keep. fp8: quantise linear weights in blocks of (rows, columns), or per
    output "channel"; scale_dtype is that of the scales.
    """
    entry = FAMILIES.get(family)
    if entry is None:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    style = config_style or entry.style
    if dtype not in DTYPES or scale_dtype not in DTYPES or style not in STYLE_VERSION:
        raise ValueError(f"unknown dtype {dtype!r} or config style {config_style!r}")
    if mtp and entry.mtp is None:
        raise ValueError(f"family {family!r} has no MTP layers")
    if isinstance(fp8, str) and fp8 != CHANNEL:
        raise ValueError(f"fp8 is (rows, columns) or {CHANNEL!r}, not {fp8!r}")
    if store_tied_head and not tied:
        raise ValueError("store_tied_head needs tied=True")
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    depth = entry.default_mtp if mtp is None else mtp
    sizes = Sizes(layers, hidden, heads, kv_heads, head_dim, ffn, vocab, depth, experts, dense)
    config = release_config(entry, sizes, dtype, bool(tied), style, extra_config)
    shapes = oracle_shapes(entry, config)
    copied = entry.mtp is not None and (entry.mtp.copied if mtp_copies is None else mtp_copies)
    head, copies = mtp_shapes(entry, sizes, shapes, copied)
    head = with_experts(head, mtp_experts or (entry.mtp and entry.mtp.experts) or expert_layout)
    shapes = with_experts(shapes, expert_layout or entry.experts) | head
    if store_tied_head:
        copies = {HEAD: entry.prefix + EMBEDDING, **copies}
    if inv_freq and entry.buffers:
        size = (config["qk_rope_head_dim"] // 2,)
        shapes |= {entry.buffers.format(layer=layer): size for layer in range(layers)}
    if not keep_float32:
        entry = replace(entry, float32=None)
    tensors = fill(shapes, copies, entry, dtype, seed)
    if fp8 is not None:
        tensors = quantised(tensors, fp8, scale_dtype)
        config["quantization_config"] = fp8_config(fp8)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder, shards)
    write_json(folder / "config.json", config)
    write_sidecars(folder, vocab, style, entry.files)
    return folder


def fp8_blocks(text: str) -> Fp8:
    """The value of --fp8."""
    if text == CHANNEL:
        return text
    rows, columns = map(int, text.split(","))
    return rows, columns


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
    parser.add_argument("--config-style", choices=sorted(STYLE_VERSION), help="default: the family's own")
    parser.add_argument("--experts", type=int, default=12)
    parser.add_argument("--dense", type=int, default=1, help="layers before the first one with experts")
    parser.add_argument("--expert-layout", choices=(PER_EXPERT, PACKED), help="default: the family's own")
    parser.add_argument("--mtp-experts", choices=(PER_EXPERT, PACKED), help="default: the family's own")
    parser.add_argument("--mtp-copies", action=argparse.BooleanOptionalAction, help="embedding and head in MTP layers")
    parser.add_argument("--inv-freq", action="store_true", help="store the rotary buffers of every layer")
    parser.add_argument("--keep-float32", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fp8", type=fp8_blocks, metavar="ROWS,COLUMNS|channel", help="quantise linear weights")
    parser.add_argument("--scale-dtype", choices=sorted(DTYPES), default="float32")
    options = vars(parser.parse_args(argv))
    try:
        print(make_tiny(options.pop("family"), options.pop("out"), **options))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"make_tiny: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
