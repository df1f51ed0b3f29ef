"""One step's inputs: the Hugging Face folder, the layout, and what the model of this rank must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel

from . import reference
from .hf import (
    HfConfig,
    Tensors,
    delta_net_sizes,
    linear_layers,
    mtp_layers,
    num_experts,
    only_te_names,
    read_config,
    read_tensors,
)
from .hybrid import is_hybrid, mamba_sizes
from .model import build_model
from .sharding import Layout, ModelSizes, Rank

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """One step's inputs, read and completed with defaults."""

    step: dict[str, Any]
    hf_config: HfConfig
    hf_tensors: Tensors
    layout: Layout
    mtp: int
    dtype: torch.dtype
    padded_vocab: int
    te_names: bool

    @classmethod
    def read(cls, step: dict[str, Any], layout: Layout) -> Setting:
        """Without `mtp` and `padded_vocab` the Hugging Face folder's own numbers are taken."""
        config, tensors = read_config(step["hf"]), read_tensors(step["hf"])
        vocab_rows = tensors["model.embed_tokens.weight"].shape[0]
        return cls(
            step=step,
            hf_config=config,
            hf_tensors=tensors,
            layout=replace(layout, first_stage_layers=step.get("first_stage_layers")),
            mtp=int(step.get("mtp", mtp_layers(config))),
            dtype=DTYPES[step.get("dtype", "fp32")],
            padded_vocab=int(step.get("padded_vocab", vocab_rows)),
            te_names=bool(step.get("te_names", False)) or only_te_names(config),
        )

    def model(self) -> GPTModel:
        """This rank's model, all NaN."""
        return build_model(
            self.hf_config,
            self.layout,
            mtp=self.mtp,
            dtype=self.dtype,
            padded_vocab=self.padded_vocab,
            te_names=self.te_names,
        )

    def expected_full(self) -> Tensors:
        """Every parameter of the one-rank model, without the MTP layers the model lacks.

        All are in the model's dtype but the routers' biases, which Megatron keeps in fp32.
        """
        full = reference.expected_parameters(self.hf_config, self.hf_tensors, self.padded_vocab)
        kept = {name: value for name, value in full.items() if _mtp_index(name) < self.mtp}
        return {n: value.float() if n.endswith(".expert_bias") else value.to(self.dtype) for n, value in kept.items()}

    def expected(self, local_name: str, full: Tensors) -> tuple[str, torch.Tensor]:
        """The one-rank name and this rank's value of one of its parameters."""
        rank = Rank(
            self.layout,
            tp=parallel_state.get_tensor_model_parallel_rank(),
            pp=parallel_state.get_pipeline_model_parallel_rank(),
            ep=parallel_state.get_expert_model_parallel_rank(),
        )
        config = self.hf_config
        sizes = ModelSizes(
            layers=config["num_hidden_layers"],
            experts=num_experts(config),
            pieces=_pieces(config),
            gated=not is_hybrid(config),
            whole_latents=self.te_names,
        )
        return rank.expected(local_name, full, sizes)


def _pieces(config: HfConfig) -> dict[str, tuple[int, ...]]:
    """Rows of what is cut piece by piece in the joint projection and the filters of linear attention."""
    if is_hybrid(config):
        sizes = mamba_sizes(config)
        return {"in_proj": sizes, "conv1d": sizes[1:4]}
    sizes = delta_net_sizes(config) if linear_layers(config) else ()
    return {"in_proj": sizes, "conv1d": sizes[:3]}


def _mtp_index(name: str) -> int:
    return int(name.split(".")[2]) if name.startswith("mtp.layers.") else -1
