"""What MambaMixer needs of the mamba_ssm package and of einops, in plain torch.

The kernels run on CUDA only; what they compute is Mamba-2's recurrence, stated here once more.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

REARRANGED = {
    "l b d -> b l d": lambda x: x.transpose(0, 1),
    "b l d -> l b d": lambda x: x.transpose(0, 1),
    "d 1 w -> d w": lambda x: x.squeeze(1),
}


class GatedNorm(torch.nn.Module):
    """mamba_ssm's RMSNorm in groups; the gate is weighed in before it, by the kernel."""

    def __init__(self, size: int, eps: float, group_size: int, norm_before_gate: bool, **factory: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, **factory))
        self.eps, self.group_size = eps, group_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise every group of the last dimension."""
        grouped = x.view(*x.shape[:-1], -1, self.group_size)
        return functional.rms_norm(grouped, (self.group_size,), eps=self.eps).view_as(x) * self.weight


def split_conv_scan(
    zxbcdt: torch.Tensor,
    filters: torch.Tensor,
    filter_bias: torch.Tensor,
    dt_bias: torch.Tensor,
    a: torch.Tensor,
    D: torch.Tensor,  # noqa: N803  (the kernel's name)
    *,
    headdim: int,
    ngroups: int,
    **_: Any,
) -> torch.Tensor:
    """mamba_split_conv1d_scan_combined: [batch, length, z x B C dt] to [batch, length, inner], times silu(z).

    x, B and C pass a causal filter per channel and silu; then, per head, h = exp(dt a) h + dt x B and y = C h + D x.
    """
    heads = a.shape[0]
    inner, length = heads * headdim, zxbcdt.shape[1]
    z, xbc, dt = zxbcdt.split([inner, filters.shape[0], heads], -1)
    padded = functional.pad(xbc.transpose(1, 2), (filters.shape[1] - 1, 0))
    xbc = functional.silu(functional.conv1d(padded, filters[:, None], filter_bias, groups=len(filters))).transpose(1, 2)
    states = (filters.shape[0] - inner) // 2
    x, b, c = xbc.split([inner, states, states], -1)
    x = x.unflatten(-1, (heads, headdim))
    b, c = (t.unflatten(-1, (ngroups, -1)).repeat_interleave(heads // ngroups, 2) for t in (b, c))
    dt = functional.softplus(dt + dt_bias)
    state, found = torch.zeros(*x[:, 0].shape, b.shape[-1]), []
    for t in range(length):
        gained = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = (dt[:, t] * a).exp()[..., None, None] * state + gained
        found.append((state * c[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(found, 1).flatten(2) * functional.silu(z)


def install() -> None:
    """Put the restated kernels where Megatron looks for mamba_ssm, before it does; and what it needs of einops."""
    triton_ops = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"
    functions = ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")
    _module(triton_ops, **dict.fromkeys(functions))
    _module("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=GatedNorm)
    kernels = {"mamba_chunk_scan_combined": None, "mamba_split_conv1d_scan_combined": split_conv_scan}
    _module("mamba_ssm.ops.triton.ssd_combined", **kernels)
    import megatron.core.ssm.mamba_context_parallel as context_parallel
    import megatron.core.ssm.mamba_mixer as mixer

    made: Any = mixer
    made.rearrange, made.HAVE_EINOPS, context_parallel.HAVE_EINOPS = _rearrange, True, True


def _module(name: str, **content: Any) -> None:
    parts = name.split(".")
    for depth in range(1, len(parts)):
        if parts[0] == "mamba_ssm":
            sys.modules.setdefault(".".join(parts[:depth]), ModuleType(parts[depth - 1]))
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def _rearrange(x: torch.Tensor, pattern: str) -> torch.Tensor:
    return REARRANGED[pattern](x)
