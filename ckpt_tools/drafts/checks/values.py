"""Weights that were never trained or never loaded: all zero, constant, not finite."""

from __future__ import annotations

from typing import Any

from ...engine.view import View, handles_for
from ...errors import Finding
from ...refs import SMALL
from ...report import listed
from ...stores.dtypes import FLOATS
from ..identity import read_range, sample_ranges
from ..spec import HeadTensor
from .pair import Pair

NAME = "values"
COMPLETE = 1 << 28  # bytes of a head up to which every value is looked at
BIAS = "bias"
# Bits of an exponent that is all ones: infinities and nan.
EXPONENT = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000), "F64": ("<u8", 0x7FF0 << 48)}


def check_values(pair: Pair) -> None:
    """Complete for heads of ordinary size, else the samples that the weights hash is made of."""
    complete = pair.spec.nbytes <= COMPLETE
    zero_centred = pair.spec.dims is not None and pair.spec.dims.zero_centred
    verdicts: dict[str, list[str]] = {}
    for entry in pair.spec.tensors.values():
        there = not pair.rules.headers_only or entry.tensor.nbytes <= SMALL
        if entry.dtype in FLOATS and entry.files and there:
            verdicts.setdefault(_verdict(entry, complete, zero_centred), []).append(entry.source)
    for verdict, names in verdicts.items():
        if verdict:
            pair.found(NAME, _finding(pair, verdict, names))
    if not any(verdicts):
        pair.passed(NAME, "finite, not constant", _extent(pair, complete))


def _extent(pair: Pair, complete: bool) -> str:
    if pair.rules.headers_only:
        return f"tensors of at most {SMALL:,} bytes, which were downloaded"
    return "every value" if complete else "samples"


def _verdict(entry: HeadTensor, complete: bool, zero_centred: bool) -> str:
    """ "" or the code of what is wrong; a bias may be zero, a norm may still be all ones."""
    import numpy as np

    kind, exponent = EXPONENT[entry.dtype]
    values = np.frombuffer(_bytes(entry, complete), dtype=kind)
    if bool(((values & exponent) == exponent).any()):
        return "tensor-not-finite"
    if values.size < 2 or not _constant(values):
        return ""
    if not _constant(np.frombuffer(entry.read(), dtype=kind)):
        return ""
    if entry.source.endswith(BIAS):
        return ""
    matrix = len(entry.shape) > 1
    if not values[0] & (np.iinfo(values.dtype).max >> 1):
        return "norm-constant" if zero_centred and not matrix else "tensor-zero"
    return "tensor-constant" if matrix else "norm-constant"


def _constant(values: Any) -> bool:
    return bool((values == values[0]).all())


def _bytes(entry: HeadTensor, complete: bool) -> bytes:
    if complete:
        return entry.read()
    handles = handles_for(list(entry.files))
    try:
        view = View(entry.tensor, list(entry.moves), handles)
        item = entry.tensor.itemsize
        ranges = [(start // item * item, stop // item * item) for start, stop in sample_ranges(entry.tensor.nbytes)]
        return b"".join(read_range(view, start, stop) for start, stop in ranges)
    finally:
        handles.close()


def _finding(pair: Pair, code: str, names: list[str]) -> Finding:
    what, severity = {
        "tensor-not-finite": ("hold nan or infinity", "error"),
        "tensor-zero": ("are all zero: never loaded, or never trained", "error"),
        "tensor-constant": ("hold one value everywhere: never loaded, or never trained", "error"),
        "norm-constant": ("hold one value everywhere, as a norm that was never trained does", "warning"),
    }[code]
    return Finding(
        code,
        f"{len(names)} tensors {what}",
        str(pair.spec.source),
        "trained values",
        listed(names),
        "export the head again from the training checkpoint",
        severity,
    )
