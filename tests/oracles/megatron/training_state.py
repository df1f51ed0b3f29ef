"""What a Megatron training iteration saves beside the model: common content, optimizer, RNG and rerun state.

Megatron's training entry points are not part of the megatron-core wheel; their structure of the saved dict is repeated
here, around megatron-core's own DistributedDataParallel, optimizers and rerun state machine.
"""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.rerun_state_machine import get_rerun_state_machine

from .hf import HfConfig, head_dim, is_tied, query_groups, rope_parameters
from .sharding import Layout
from .shims import PretendCuda

StateDict = dict[str, Any]
DEFAULT_SHARDING = "dp_reshardable"  # what training asks for without --dist-ckpt-optim-fully-reshardable


def common_state(
    hf_config: HfConfig, layout: Layout, *, mtp: int, padded_vocab: int, dtype: torch.dtype, training: StateDict
) -> StateDict:
    """The plain entries of a training checkpoint; `training` may override the iteration and single args."""
    args = Namespace(
        num_layers=hf_config["num_hidden_layers"],
        hidden_size=hf_config["hidden_size"],
        ffn_hidden_size=hf_config["intermediate_size"],
        num_attention_heads=hf_config["num_attention_heads"],
        group_query_attention=True,
        num_query_groups=query_groups(hf_config),
        kv_channels=head_dim(hf_config),
        max_position_embeddings=hf_config["max_position_embeddings"],
        rotary_base=int(rope_parameters(hf_config)["rope_theta"]),
        norm_epsilon=hf_config["rms_norm_eps"],
        untie_embeddings_and_output_weights=not is_tied(hf_config),
        vocab_size=hf_config["vocab_size"],
        padded_vocab_size=padded_vocab,
        make_vocab_size_divisible_by=128,
        mtp_num_layers=mtp or None,
        num_experts=None,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        world_size=layout.world_size,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        no_save_optim=not training.get("optimizer"),
        no_save_rng=not training.get("rng"),
        ckpt_format="torch_dist",
        consumed_train_samples=0,
        consumed_valid_samples=0,
    )
    for name, value in training.get("args", {}).items():
        setattr(args, name, value)
    return {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": training.get("iteration", 1),
        "num_floating_point_operations_so_far": 0,
    }


def optimizer_state(
    model: GPTModel, model_state: StateDict, *, distributed: bool, metadata: StateDict, dtype: torch.dtype
) -> StateDict:
    """The real optimizer's sharded state (fp32 masters, exp_avg, exp_avg_sq, with non-trivial values)."""
    bf16 = dtype is torch.bfloat16
    metadata = {"distrib_optim_sharding_type": DEFAULT_SHARDING, **metadata} if distributed else metadata
    with PretendCuda():
        wrapped = DistributedDataParallel(
            model.config, DistributedDataParallelConfig(use_distributed_optimizer=distributed), model
        )
        config = OptimizerConfig(
            optimizer="adam", lr=0.0, bf16=bf16, params_dtype=dtype, use_distributed_optimizer=distributed
        )
        chained = get_megatron_optimizer(config, [wrapped])
        for optimizer in chained.chained_optimizers:
            _take_a_step_of_nothing(optimizer, distributed)
        state: StateDict = chained.sharded_state_dict({"model": model_state}, metadata=metadata)
    return state


def _take_a_step_of_nothing(optimizer: Any, distributed: bool) -> None:
    """Create Adam's state as Megatron does before a load (zero gradients, learning rate 0), then give it values."""
    if distributed:
        optimizer._init_optimizer_states_with_dummy_values()
    else:
        optimizer.init_state_fn(optimizer.optimizer, optimizer.config)
    for state in optimizer.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            torch.nn.init.uniform_(state[name])


def scheduler_state() -> StateDict:
    """What OptimizerParamScheduler.state_dict() holds."""
    return {
        "max_lr": 1e-5,
        "lr_warmup_steps": 0,
        "num_steps": 1,
        "lr_decay_style": "constant",
        "lr_decay_steps": 100,
        "min_lr": 0.0,
        "start_wd": 0.1,
        "end_wd": 0.1,
        "wd_incr_style": "constant",
        "wd_incr_steps": 100,
    }


def rng_state(layout: Layout) -> ShardedObject:
    """One entry per (pipeline, tensor) rank; the CPU's generator state stands in for the CUDA one."""
    state = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()},
    }
    ranks = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    return ShardedObject("rng_state", [state], (layout.pp, layout.tp), ranks, replica_id=0)


def rerun_state() -> StateDict:
    """The rerun state machine's own state dict, which training saves once the machine runs (forced here)."""
    state: StateDict = get_rerun_state_machine().state_dict(data_iterator=None, ckpt_format="torch_dist", force=True)
    return state
