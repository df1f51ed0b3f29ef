"""Stand-ins for TransformerEngine's modules, made of megatron-core's own ones: they compute on CPU and are named alike.

With them Megatron's real TransformerEngine specs are built, so a load asks for the names that training on GPUs asks for:
norms fused into the linear layer behind them, `_extra_state` objects of norms and linears. What only TransformerEngine
itself knows, the content of those objects and which of its versions ask for more, stays unproven.
"""

from __future__ import annotations

from typing import Any

import megatron.core.models.gpt.experimental_attention_variant_module_specs as variant_specs
import megatron.core.ssm.gated_delta_net as gated_delta_net
import megatron.core.transformer.experimental_attention_variant.dsa as sparse_attention
import megatron.core.transformer.multi_latent_attention as latent_attention
import torch
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_config import TransformerConfig


def rms_norm(x: torch.Tensor, weight: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
    """Root-mean-square normalisation, by w or by 1 + w as the config says."""
    scale = 1 + weight if config.layernorm_zero_centered_gamma else weight
    return torch.nn.functional.rms_norm(x, weight.shape, scale, config.layernorm_epsilon)


class Stateful(torch.nn.Module):
    """Asks for an `_extra_state`, as every TransformerEngine module does, and takes any."""

    def get_extra_state(self) -> None:
        """Nothing."""

    def set_extra_state(self, state: Any) -> None:
        """Ignore it."""


class Norm(Stateful):
    """TENorm."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.config = config
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        if self.config.normalization == "LayerNorm":
            return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return rms_norm(x, self.weight, self.config)


class NormedColumnLinear(ColumnParallelLinear):  # type: ignore[misc]
    """TELayerNormColumnParallelLinear: its own norm, then the linear layer."""

    def __init__(self, input_size: int, output_size: int, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.empty(input_size))

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The linear layer of the normalised input."""
        return super().forward(rms_norm(x, self.layer_norm_weight, self.config), *args, **kwargs)


class WholeLinear(Stateful):
    """TELinear with `parallel_mode` "duplicated": every tensor-parallel rank holds all of it."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Output and bias."""
        return torch.nn.functional.linear(x, self.weight), None


class StandInProvider(BackendSpecProvider):  # type: ignore[misc]
    """TESpecProvider."""

    def linear(self) -> type:
        """A linear layer that is not cut."""
        return WholeLinear

    def column_parallel_linear(self) -> type:
        """A linear layer cut by rows."""
        return ColumnParallelLinear  # type: ignore[no-any-return]

    def row_parallel_linear(self) -> type:
        """A linear layer cut by columns."""
        return RowParallelLinear  # type: ignore[no-any-return]

    def fuse_layernorm_and_linear(self) -> bool:
        """Norms belong to the linear layer behind them."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """Norm and linear layer in one."""
        return NormedColumnLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        """A norm of its own."""
        return Norm

    def core_attention(self) -> type:
        """The attention without projections."""
        return DotProductAttention  # type: ignore[no-any-return]

    def grouped_mlp_modules(self, *_: Any) -> tuple[type, MLPSubmodules]:
        """One MLP per expert; checkpoints do not tell it from a grouped one."""
        return SequentialMLP, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)

    def activation_func(self) -> None:
        """The config's."""


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """FLA's l2norm: division by the length of the last dimension."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def install() -> None:
    """Put the stand-ins where Megatron's specs look for TransformerEngine, and l2norm where the delta net looks for FLA.

    The indexer of sparse attention turns queries and keys by one Hadamard matrix, which its scores do not see, and which
    needs CUDA; here it turns nothing. FLA's other function, the fast delta rule, is not needed: `deterministic_mode` runs
    Megatron's own in plain torch.
    """
    specs: Any = gpt_layer_specs
    for module in (specs, variant_specs):
        module.TESpecProvider = StandInProvider
    specs.TENorm = Norm
    latent: Any = latent_attention
    latent.TELinear = WholeLinear
    delta_net: Any = gated_delta_net
    sparse: Any = sparse_attention
    sparse.rotate_activation = lambda x: x
    delta_net.HAVE_FLA, delta_net.l2norm = True, l2norm
