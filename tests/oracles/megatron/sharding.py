"""Which part of the full model's parameters a tensor/pipeline rank must hold, stated without Megatron."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from .hf import Tensors

# Module names (before .weight/.bias) by how tensor parallelism cuts them; every other parameter is replicated.
ROWS = ("word_embeddings", "output_layer", "linear_qkv", "eh_proj")
COLUMNS = ("linear_proj", "linear_fc2")
GATED_ROWS = ("linear_fc1",)

_DECODER_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Layout:
    """A parallel layout; without `first_stage_layers` the decoder layers are split evenly over the stages."""

    tp: int = 1
    pp: int = 1
    first_stage_layers: int | None = None

    def stage_start(self, stage: int, num_layers: int) -> int:
        """The global index of the first decoder layer of a pipeline stage."""
        if self.first_stage_layers is None or self.pp == 1:
            return stage * (num_layers // self.pp)
        if stage == 0:
            return 0
        rest = (num_layers - self.first_stage_layers) // (self.pp - 1)
        return self.first_stage_layers + (stage - 1) * rest


def shard(name: str, full: torch.Tensor, tp: int, tp_rank: int) -> torch.Tensor:
    """The part of one full parameter that a tensor-parallel rank holds."""
    module = name.rpartition(".")[0].rpartition(".")[2]
    if module in ROWS:
        return full.chunk(tp, dim=0)[tp_rank]
    if module in COLUMNS:
        return full.chunk(tp, dim=1)[tp_rank]
    if module in GATED_ROWS:
        gate, up = full.chunk(2, dim=0)
        return torch.cat([gate.chunk(tp, dim=0)[tp_rank], up.chunk(tp, dim=0)[tp_rank]])
    return full


def full_name(local_name: str, layout: Layout, pp_rank: int, num_layers: int) -> str:
    """The name, in the one-rank model, of a parameter of a pipeline stage (which counts its layers from 0)."""
    match = _DECODER_LAYER.match(local_name)
    if match is None:
        return local_name
    index = layout.stage_start(pp_rank, num_layers) + int(match.group(1))
    return f"decoder.layers.{index}.{local_name[match.end() :]}"


def expected_local(
    local_name: str, full: Tensors, layout: Layout, *, tp_rank: int, pp_rank: int, num_layers: int
) -> tuple[str, torch.Tensor]:
    """The one-rank name and the expected value of one parameter of a rank.

    A tied model's last stage has its own copy of the embedding, named output_layer.
    """
    name = full_name(local_name, layout, pp_rank, num_layers)
    if name == "output_layer.weight" and name not in full:
        name = "embedding.word_embeddings.weight"
    if name not in full:
        raise KeyError(f"the model has a parameter {local_name} ({name}) that nothing is expected for")
    return name, shard(name, full[name], layout.tp, tp_rank)
