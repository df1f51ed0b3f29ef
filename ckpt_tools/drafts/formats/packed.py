"""Quantised heads that are not read: packed integers and float4 (ModelOpt NVFP4, AWQ, GPTQ), activation scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...quantised import FLOAT8, SUFFIXES, quantisation
from ...report import Report, listed
from ...stores.base import Tensor
from ...stores.dtypes import FLOATS
from .containers import Container

WEIGHT = ".weight"
# What lies beside a quantised weight: ModelOpt, compressed-tensors, AWQ and GPTQ, DeepSeek.
BESIDE = (
    "input_scale",
    "weight_scale_2",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
    "input_global_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
BLOCKS = tuple(WEIGHT.removeprefix(".") + suffix for suffix in SUFFIXES)


def refuse_packed(
    container: Container, weights: Mapping[str, Tensor], modules: Iterable[str], report: Report, float8: bool
) -> bool:
    """Whether the head is quantised in a way that is not read; says so.

    `weights` are the head's tensors under the names of the source, `modules` its linear modules; `float8`: block and
    channel scales are read.
    """
    readable = (*FLOATS, *(FLOAT8 if float8 else ()))
    packed = [f"{name} ({tensor.dtype})" for name, tensor in weights.items() if tensor.dtype not in readable]
    beside = [
        f"{module}.{ending}"
        for module in modules
        for ending in (*BESIDE, *(() if float8 else BLOCKS))
        if f"{module}.{ending}" in container.tensors
    ]
    if not packed and not beside:
        return False
    scheme = quantisation(container.config) or {}
    method = scheme.get("quant_algo") or scheme.get("format") or scheme.get("quant_method") or "unstated"
    report.error(
        "head-quantised",
        f"the head is quantised ({method}), and of that nothing is read",
        where=container.where,
        expected="bf16, fp16, fp32" + (", or float8 with block or channel scales" if float8 else ""),
        actual=listed([*packed, *beside]),
        fix="export the head unquantised with the tool that trained it; servers quantise it themselves if asked",
    )
    return True
