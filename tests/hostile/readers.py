"""Every reader of foreign bytes, as a function of the bytes of one file of an otherwise sound checkpoint.

A reader may refuse with CkptError or understand; it may not raise anything else, and nothing may appear outside of where it
was told to write. Shared by the tests and by scripts/fuzz_readers.py.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from make_tiny import make_tiny

from ckpt_tools.convert import Options, convert
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from ckpt_tools.inspection import inspect_checkpoint

SIZE = {"layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 16, "vocab": 16}


@dataclass(frozen=True)
class Reader:
    """`folder` is sound, `file` the one that a fuzzer replaces, `seed` its sound bytes."""

    folder: Path
    file: Path
    work: Callable[[Path, Path], object]

    @property
    def seed(self) -> bytes:
        return self.file.read_bytes()

    def read(self, data: bytes, seed: bytes) -> str:
        """ "" if the bytes were understood, else the code of the first finding; raises AssertionError if anything leaks."""
        out = self.folder.parent / f"{self.folder.name}-out"
        before = names(self.folder.parent)
        try:
            self.file.write_bytes(data)
            self.work(self.folder, out)
            return ""
        except CkptError as problem:
            assert problem.findings and not out.exists(), "a refused input left an output"
            return problem.findings[0].code
        finally:
            self.file.write_bytes(seed)
            shutil.rmtree(out, ignore_errors=True)
            assert names(self.folder.parent) == before, "files appeared outside of the destination"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def converted(folder: Path, out: Path) -> object:
    return convert(folder, out, Options(checksums=True))


def inspected(folder: Path, _: Path) -> object:
    return inspect_checkpoint(folder, check=True)


def head(folder: Path, _: Path) -> object:
    return open_draft(folder, None)


def readers(root: Path) -> dict[str, Reader]:
    """All readers, with their checkpoints below `root`."""
    single = make_tiny("qwen3", root / "single", **SIZE)
    sharded = make_tiny("mimo", root / "sharded", shards=2, **SIZE)
    scaled = make_tiny("deepseek_v3", root / "scaled", experts=2, fp8=(8, 8), **SIZE | {"layers": 2})
    convert(make_tiny("mimo", root / "source", **SIZE), root / "dist", Options(checksums=True))
    old = root / "head"
    old.mkdir()
    torch.save({"fc.weight": torch.zeros(4, 8), "midlayer.norm.weight": torch.zeros(4)}, old / "pytorch_model.bin")
    (old / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4}))
    found = {
        "safetensors": Reader(single, single / "model.safetensors", converted),
        "config": Reader(sharded, sharded / "config.json", converted),
        "index": Reader(sharded, sharded / "model.safetensors.index.json", converted),
        "index-inspected": Reader(sharded, sharded / "model.safetensors.index.json", inspected),
        "scales": Reader(scaled, scaled / "model.safetensors", converted),
    }
    for name, file in (
        ("metadata", ".metadata"),
        ("frames", "__0_0.distcp"),
        ("common", "common.pt"),
        ("manifest", "hf/ckpt-tools.json"),
        ("carried-config", "hf/config.json"),
    ):
        found[name] = Reader(root / "dist", root / "dist/release" / file, converted)
    found["tracker"] = Reader(root / "dist", root / "dist/latest_checkpointed_iteration.txt", inspected)
    found["checksums"] = Reader(root / "dist", root / "dist/release/hf/ckpt-tools.json", inspected)
    found["torch-file"] = Reader(old, old / "pytorch_model.bin", head)
    found["head-config"] = Reader(old, old / "config.json", head)
    return found


NAMES = [
    *("safetensors", "config", "index", "index-inspected", "scales"),
    *("metadata", "frames", "common", "manifest", "carried-config", "tracker", "checksums"),
    *("torch-file", "head-config"),
]
