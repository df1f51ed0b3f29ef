"""What can be run at all: devices, and which drafts which pair of target and head can make and verify."""

from __future__ import annotations

import torch

from ..errors import UsageProblem, error
from .head import Head
from .target import Run, Target
from .tree import TreeShape
from .verification import Sampling


def check_options(device: str, sampling: Sampling, shape: TreeShape) -> None:
    """Before anything is loaded; raises UsageProblem."""
    if not shape.chain and not sampling.greedy and sampling.method == "exact":
        raise error(
            UsageProblem,
            "tree-exact",
            "exact rejection sampling is defined for chains",
            expected="--topk 1, as SGLang asks for",
            actual=f"--topk {shape.topk}",
            fix="--method target-only, or --topk 1",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise error(
            UsageProblem,
            "no-cuda",
            "there is no CUDA device",
            expected="a GPU that torch sees",
            actual=f"torch {torch.__version__}",
            fix="--device cpu, or a torch with CUDA",
        )


def check_pair(target: Target, head: Head, shape: TreeShape) -> None:
    """Several MTP layers draft one token each. Trees need one layer for all of them, and a past of which branches can be
    kept. Raises UsageProblem."""
    if head.depth > 1 and shape.steps > head.depth:
        raise error(
            UsageProblem,
            "steps-beyond-layers",
            f"{head.depth} MTP layers draft one token each",
            expected=f"--steps {head.depth} or fewer",
            actual=f"--steps {shape.steps}",
            fix=f"--steps {head.depth}",
        )
    if shape.chain:
        return
    kept = Run(target).not_branching
    if head.depth > 1 or kept:
        raise error(
            UsageProblem,
            "tree-not-run",
            "trees are not drafted with this pair",
            expected="one layer that drafts every token, and full attention in every layer of the target",
            actual=f"{head.depth} MTP layers"
            + (f", and layers of the target that keep {', '.join(kept)}" if kept else ""),
            fix="--topk 1",
        )
    words = len(head.logits(torch.zeros(1, head.hidden_size, device=head.device, dtype=head.dtype))[0])
    if shape.topk > words:
        raise error(
            UsageProblem,
            "tree-shape",
            f"the draft vocabulary has {words} tokens",
            expected=f"--topk {words} at most",
            actual=f"--topk {shape.topk}",
            fix="a smaller --topk",
        )
