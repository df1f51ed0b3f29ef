"""Which part of the full model's parameters a tensor/pipeline/expert rank must hold, stated without Megatron."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .hf import Tensors

# Module names (before .weight/.bias) by how tensor parallelism cuts them; every other parameter is replicated.
ROWS = (
    "word_embeddings",
    "output_layer",
    "linear_qkv",
    "linear_q_proj",
    "linear_q_down_proj",
    "linear_q_up_proj",
    "linear_kv_down_proj",
    "linear_kv_up_proj",
    "eh_proj",
)
COLUMNS = ("linear_proj", "linear_fc2", "out_proj")
PER_HEAD = ("A_log", "D", "dt_bias", "softmax_offset")
# Parameters made of parts that are cut one by one: gate and up here, a linear attention's from its sizes.
HALVES = ("linear_fc1",)
WHOLE_LATENTS = ("linear_q_down_proj.weight", "linear_kv_down_proj.weight")
# What TransformerEngine's specs call the norms that they fuse into the linear layer behind them.
FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.in_proj.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}

_DECODER_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"(?<=\.local_experts\.)\d+(?=\.)")


@dataclass(frozen=True)
class Layout:
    """A parallel layout; without `first_stage_layers` the decoder layers are split evenly over the stages.

    Experts are cut by `tp` like everything else and dealt in order to `ep` ranks, which are data parallel to each other
    for all that is no expert.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    first_stage_layers: int | None = None

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tp * self.pp * self.ep

    def stage_start(self, stage: int, num_layers: int) -> int:
        """The global index of the first decoder layer of a pipeline stage."""
        if self.first_stage_layers is None or self.pp == 1:
            return stage * (num_layers // self.pp)
        if stage == 0:
            return 0
        rest = (num_layers - self.first_stage_layers) // (self.pp - 1)
        return self.first_stage_layers + (stage - 1) * rest


@dataclass(frozen=True)
class ModelSizes:
    """What of a model decides names and cuts.

    `pieces`: rows of the parts of a module that are cut one by one. `gated`: whether MLPs are. `whole_latents`: every rank
    holds all of the down projections, as TransformerEngine's specs have it.
    """

    layers: int
    experts: int
    pieces: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gated: bool = True
    whole_latents: bool = False


@dataclass(frozen=True)
class Rank:
    """A position in a layout."""

    layout: Layout
    tp: int
    pp: int
    ep: int

    def full_name(self, local_name: str, num_layers: int, num_experts: int) -> str:
        """The name, in the one-rank model, of a parameter: a stage counts its layers from 0, a rank its experts."""
        first_expert = self.ep * (num_experts // self.layout.ep)
        name = _EXPERT.sub(lambda found: str(first_expert + int(found[0])), local_name)
        for fused, own in FUSED_NORMS.items():
            name = name.removesuffix(fused) + own if name.endswith(fused) else name
        match = _DECODER_LAYER.match(name)
        if match is None:
            return name
        index = self.layout.stage_start(self.pp, num_layers) + int(match.group(1))
        return f"decoder.layers.{index}.{name[match.end() :]}"

    def expected(self, local_name: str, full: Tensors, model: ModelSizes) -> tuple[str, torch.Tensor]:
        """The one-rank name and the expected value of one of this rank's parameters.

        A tied model's last stage has its own copy of the embedding, named output_layer.
        """
        name = self.full_name(local_name, model.layers, model.experts)
        if name == "output_layer.weight" and name not in full:
            name = "embedding.word_embeddings.weight"
        if name not in full:
            raise KeyError(f"the model has a parameter {local_name} ({name}) that nothing is expected for")
        whole = model.whole_latents and name.endswith(WHOLE_LATENTS)
        return name, full[name] if whole else shard(name, full[name], self.layout.tp, self.tp, model)


def shard(name: str, full: torch.Tensor, tp: int, tp_rank: int, model: ModelSizes) -> torch.Tensor:
    """The part of one full parameter that a tensor-parallel rank holds."""
    path, _, kind = name.rpartition(".")
    module = path.rpartition(".")[2]
    if module in COLUMNS:
        return full if kind == "bias" else full.chunk(tp, dim=1)[tp_rank]
    if module in ROWS or kind in PER_HEAD:
        parts: tuple[int, ...] = (full.shape[0],)
    elif module in HALVES:
        parts = (full.shape[0] // 2,) * 2 if model.gated else (full.shape[0],)
    elif module in model.pieces and kind != "layer_norm_weight":
        parts = model.pieces[module]
    elif path.endswith(".mixer.norm"):
        parts = (full.shape[0],)
    else:
        return full
    return torch.cat([part.chunk(tp, dim=0)[tp_rank] for part in torch.split(full, list(parts))])
