#!/usr/bin/env python3
"""Write what `convert` would write of a Hugging Face folder, with right metadata and no data.

The metadata, the frames of every chunk and the copy of config.json are real; the bytes of the tensors are holes, so a
checkpoint of 1.4 TB takes the disk of its metadata. For measuring what reads metadata only; SOURCE may be sparse as well
(scripts/make_sparse.py).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from ckpt_tools.convert.mtp import mtp_to_write
from ckpt_tools.convert.options import Options
from ckpt_tools.convert.to_megatron import plan_megatron
from ckpt_tools.errors import CkptError
from ckpt_tools.model import HF_COPY, open_model
from ckpt_tools.stores.hf_folder import CONFIG
from ckpt_tools.stores.torch_dist.reader import RELEASE, TRACKER


def make_sparse_megatron(source: Path, out: Path, **options: Any) -> Path:
    """Write the sparse torch-dist directory of the model at `source` to the new folder `out` and return it.

    options: those of `ckpt_tools.convert.Options`.
    """
    chosen = Options(**options)
    model = open_model(source, chosen.hf_config, chosen.variants)
    image = plan_megatron(model, mtp_to_write(model, chosen.mtp), chosen).program.image
    root = out / RELEASE
    (root / HF_COPY).mkdir(parents=True)
    streams = [(root / name).open("xb") for name, _ in image.files]
    for stream, (_, size) in zip(streams, image.files, strict=True):
        stream.truncate(size)
    for literal in image.literals:
        streams[literal.file].seek(literal.offset)
        streams[literal.file].write(literal.data)
    for stream in streams:
        stream.close()
    for name, data in image.small_files.items():
        (root / name).write_bytes(data)
    shutil.copy(model.config_path, root / HF_COPY / CONFIG)
    (out / TRACKER).write_text(RELEASE)
    return out


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a Hugging Face folder, with data or without")
    parser.add_argument("out", type=Path, help="directory to write, new")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size that the vocabulary is padded for")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="KIND=NAME",
        help="as convert's layout options, such as dsa=slime",
    )
    options = parser.parse_args()
    try:
        variants = dict(pair.split("=", 1) for pair in options.variant)
        print(make_sparse_megatron(options.source, options.out, tp=options.tp, variants=variants))
    except (CkptError, OSError, ValueError) as problem:
        print(f"make_sparse_megatron: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
