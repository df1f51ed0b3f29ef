"""Everything in a Hugging Face folder that is not weights: tokenizer, templates, code, cards. By deny-list."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from .hf_folder import CONFIG

WEIGHT_SUFFIXES = frozenset(
    (
        ".safetensors",
        ".bin",
        ".pt",
        ".pth",
        ".ckpt",
        ".distcp",
        ".gguf",
        ".h5",
        ".msgpack",
        ".onnx",
        ".onnx_data",
        ".ot",
        ".npz",
    )
)
INDEX_ENDING = (".index", ".json")
JOURNAL = ".journal"  # of a run that is going on, or that died after its last rename
SKIPPED_FOLDERS = frozenset((".git", ".cache", JOURNAL, "__pycache__"))
MANIFEST = "ckpt-tools.json"


def sidecars(root: Path) -> Iterator[Path]:
    """Paths, relative to `root`, of the files that travel with the weights; config.json is edited apart."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        weights = path.suffix in WEIGHT_SUFFIXES or tuple(path.suffixes[-2:]) == INDEX_ENDING
        own = relative.name in (CONFIG, MANIFEST) and len(relative.parts) == 1
        if path.is_file() and not weights and not own and not SKIPPED_FOLDERS & set(relative.parts):
            yield relative


def copy_sidecars(source: Path, target: Path, names: Iterable[Path] | None = None) -> list[str]:
    """Copy every sidecar, or those of `names`, byte for byte (links are followed); returns their names."""
    copied = []
    for relative in sidecars(source) if names is None else names:
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / relative, target / relative)
        copied.append(str(relative))
    return copied
