"""Weights that were never trained or never loaded: all zero, constant, not finite."""

from __future__ import annotations

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
# Bits of an exponent that is all ones (infinities and nan), in the highest byte of a value and in the one below.
EXPONENT = {"BF16": (0x7F, 0x80), "F16": (0x7C, 0x00), "F32": (0x7F, 0x80), "F64": (0x7F, 0xF0)}


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
    item, data = entry.tensor.itemsize, _bytes(entry, complete)
    if not _finite(data, item, *EXPONENT[entry.dtype]):
        return "tensor-not-finite"
    if len(data) < 2 * item or not _constant(data, item):
        return ""
    if not complete and not _constant(entry.read(), item):
        return ""
    if entry.source.endswith(BIAS):
        return ""
    matrix = len(entry.shape) > 1
    sign = 1 << (8 * item - 1)
    if int.from_bytes(data[:item], "little") & ~sign == 0:
        return "norm-constant" if zero_centred and not matrix else "tensor-zero"
    return "tensor-constant" if matrix else "norm-constant"


def _finite(data: bytes, item: int, high: int, below: int) -> bool:
    """On bytes, without numpy, whose import takes longer than this. Trained weights pass at the first look."""
    suspects = data[item - 1 :: item].translate(_having(high))
    if 1 not in suspects:
        return True
    others = data[item - 2 :: item].translate(_having(below))
    return not int.from_bytes(suspects, "little") & int.from_bytes(others, "little")


def _having(bits: int) -> bytes:
    """A translation table: 1 for bytes that have all these bits, else 0."""
    return bytes(byte & bits == bits for byte in range(256))


def _constant(data: bytes, item: int) -> bool:
    first = data[:item]
    return first == data[item : 2 * item] and data == first * (len(data) // item)


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
