"""Tiny targets with a head of every kind, for tests of tuning."""

from __future__ import annotations

from pathlib import Path

from make_tiny import make_tiny
from safetensors.torch import load_file, save_file

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.target import Target, load_target

from ..drafts.formats import heads as made

KINDS = ("mtp", "mtp2", "eagle", "eagle3")
SIZES = {"hidden": made.H, "vocab": made.V, "ffn": made.F, "dtype": "float32"}


def pair(kind: str, base: Path) -> tuple[Path, Path]:
    """The folders of a target and of a head of this kind ("mtp2": of two layers) that fits it."""
    if kind.startswith("mtp"):
        folder = make_tiny("mimo", base / "target", layers=3, mtp=int(kind[3:] or 1), **SIZES)  # type: ignore[arg-type]
        return folder, folder
    folder = make_tiny("llama", base / "target", layers=8, **SIZES)  # type: ignore[arg-type]
    wide(folder)
    head = base / "head"
    if kind == "eagle":
        # EAGLE has no norms that would keep its state from growing with every step.
        tensors = {name: t / 8 if t.dim() == 2 else t for name, t in made.eagle_tensors().items()}
        return folder, made.write(head, made.llama_config(architectures=["LlamaForCausalLMEagle"]), tensors)
    return folder, made.write(head, made.eagle3_config(), made.eagle3_tensors())


def wide(folder: Path) -> None:
    """Weights so large that the tiny model has opinions: near-uniform logits would prove little."""
    file = folder / "model.safetensors"
    tensors = {name: t * 4 if t.dim() == 2 else t for name, t in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def loaded(kind: str, base: Path) -> tuple[Target, Head]:
    target, head = pair(kind, base)
    model = load_target(target)
    return model, build_head(open_draft(head), model)
