"""Which tensors of a model are its MTP layer, and what a failure says."""

from __future__ import annotations

import pytest

from ckpt_tools.errors import CkptError
from tests.checkpoints import Tensors

# The names of one MTP layer, as releases spell them, written down apart from the tables.
HEADS: dict[str, tuple[str, ...]] = {
    "mimo": ("model.mtp_layers.0.",),
    "glm4_moe": ("model.layers.2.",),
    "deepseek_v3": ("model.layers.2.",),
    "qwen3_next": ("mtp.",),
    "qwen3_5": ("mtp.",),
}
COPIES = ("model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight")


def head_of(tensors: Tensors, family: str) -> Tensors:
    return {n: t for n, t in tensors.items() if n.startswith(HEADS[family]) and n not in COPIES}


def codes(failure: pytest.ExceptionInfo[CkptError]) -> list[str]:
    return [finding.code for finding in failure.value.findings]
