"""What a CPU-only machine needs so that the *model side* of megatron-core 0.16.1 runs.

The rule: the checkpoint code (megatron.core.dist_checkpointing, and the optimizer's sharded_state_dict) runs as it is.
Only the model's and the optimizer's questions to a GPU are answered here.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.overrides import TorchFunctionMode

from .sharding import Layout


def install() -> None:
    """Install every process-wide shim (once per process is enough, more often is harmless)."""
    _answer_cuda_questions()
    _kernels_of_mamba()
    _no_rng_fork()
    _attention_ignores_te_arguments()
    _stand_in_classes_for_absent_backends()


def start_process_group(rank: int, layout: Layout, rendezvous: Path) -> None:
    """Join the ranks over gloo and lay out Megatron's parallel groups.

    gloo, since NCCL needs GPUs; a file as the meeting point, since free TCP ports race between test processes.
    """
    from megatron.core import parallel_state

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=layout.world_size
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        expert_model_parallel_size=layout.ep,
    )


def _answer_cuda_questions() -> None:
    """Rotary embeddings move to `torch.cuda.current_device()`, and the saver synchronises before it writes host copies.

    The CPU is the current device, and there is nothing to wait for.
    """
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None


def _kernels_of_mamba() -> None:
    """Mamba's CUDA kernels in plain torch, put in place before Megatron looks for them."""
    import_module(f"{__package__}.mamba_kernels").install()


def _no_rng_fork() -> None:
    """Attention dropout runs in a forked CUDA generator state, which cannot exist here; dropout is 0 anyway."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()


def _attention_ignores_te_arguments() -> None:
    """Multi-latent attention passes `k_channels`/`v_channels`, which only TransformerEngine's attention accepts."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    original: Callable[..., None] = DotProductAttention.__init__
    known = set(inspect.signature(original).parameters)
    if "kwargs" in known:
        return

    def lenient(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{key: value for key, value in kwargs.items() if key in known})

    DotProductAttention.__init__ = lenient


def _stand_in_classes_for_absent_backends() -> None:
    """Without TransformerEngine its names are None or mocks, yet model code does `isinstance(x, TELinear)` with them.

    An empty class of the same name answers "no" where None raises TypeError. MoE and MLA models need this.
    """
    import_module("megatron.core.models.gpt.gpt_layer_specs")
    import_module("megatron.core.transformer.multi_latent_attention")
    moe_utils: Any = import_module("megatron.core.transformer.moe.moe_utils")

    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("megatron.core") or module is None:
            continue
        for name, value in list(vars(module).items()):
            if name.startswith(("TE", "Inference")) and (value is None or isinstance(value, MagicMock)):
                setattr(module, name, type(name, (), {}))
    # The router asks "is te_general_gemm there?"; a mock would answer yes.
    moe_utils.te_general_gemm = None


class PretendCuda(TorchFunctionMode):
    """Inside this context CPU tensors pass as CUDA tensors: for building a model, an optimizer and the latter's state.

    The model's constructor calls `.cuda()` on a shared embedding. The optimizer creates scalars with `device="cuda"`,
    calls `.cuda()`, and sorts parameters by type names such as "torch.cuda.BFloat16Tensor". No value is changed.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Send CUDA requests to the CPU and report CUDA type names."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result
