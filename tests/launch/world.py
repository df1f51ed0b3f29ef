"""A small job that fits: a MiMo with an MTP layer, its torch-dist checkpoint, and the flags that train and serve it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ckpt_tools
from ckpt_tools.launch.preflight import Preflight
from ckpt_tools.report import Outcome

SLIMES_IMAGE = "0.5.15.post1"
MODEL = (
    "--swiglu --num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --group-query-attention"
    " --num-query-groups 2 --use-rotary-position-embeddings --disable-bias-linear --add-qkv-bias --normalization RMSNorm"
    " --norm-epsilon 1e-05 --rotary-base 640000 --vocab-size 40 --untie-embeddings-and-output-weights"
)
MTP = "--mtp-num-layers 1 --enable-mtp-training --mtp-loss-scaling-factor 0.2"
SIZES = "--tensor-model-parallel-size 2 --actor-num-nodes 1 --actor-num-gpus-per-node 4"
SERVER = (
    "--rollout-num-gpus-per-engine 1 --sglang-speculative-algorithm EAGLE --sglang-speculative-num-steps 3"
    " --sglang-speculative-eagle-topk 1 --sglang-speculative-num-draft-tokens 4"
)


@dataclass
class World:
    """A target, its torch-dist checkpoint and the flags of a job that trains it."""

    target: Path
    torch_dist: Path
    model: str = MODEL
    mtp: str = MTP
    sizes: str = SIZES
    server: str = SERVER
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, more: str = "", **options: Any) -> Outcome[Preflight]:
        where = {"target": self.target, "torch_dist": self.torch_dist, "sglang_version": SLIMES_IMAGE}
        args = " ".join((self.model, self.mtp, self.sizes, self.server, more))
        return ckpt_tools.preflight(args=args, **{**where, **self.options, **options})

    def errors(self, more: str = "", **options: Any) -> list[str]:
        return [f.code for f in self.run(more, **options).findings if f.severity == "error"]

    def warnings(self, more: str = "", **options: Any) -> list[str]:
        return [f.code for f in self.run(more, **options).findings if f.severity == "warning"]

    def notes(self, more: str = "", **options: Any) -> list[str]:
        return [f.code for f in self.run(more, **options).findings if f.severity == "note"]

    def without(self, flag: str, part: str = "model") -> World:
        """Without a flag and its value."""
        words = getattr(self, part).split()
        at = words.index(flag)
        width = 1 if at + 1 == len(words) or words[at + 1].startswith("--") else 2
        return World(**{**self.__dict__, part: " ".join(words[:at] + words[at + width :])})
