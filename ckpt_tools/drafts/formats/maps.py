"""The vocabulary maps of a head as tensors to write."""

from __future__ import annotations

from array import array

from ..spec import D2T, T2D, DraftSpec
from .writing import Made


def made_maps(spec: DraftSpec) -> dict[str, Made]:
    """What must be made anew: maps out of a side file, the one of d2t and t2d that is not there, d2t that is not int64."""
    offsets, mask = spec.d2t(), spec.t2d()
    made: dict[str, Made] = {}
    if offsets is None and mask is not None:
        offsets = array("q", (j - i for i, j in enumerate(j for j, flag in enumerate(mask) if flag)))
    if offsets is None:
        return made
    if D2T not in spec.tensors or spec.tensors[D2T].dtype != "I64":
        made[D2T] = Made("I64", (len(offsets),), array("q", offsets).tobytes())
    if T2D not in spec.tensors:
        flags = bytearray(spec.vocab_size)
        for i, offset in enumerate(offsets):
            flags[i + offset] = 1
        made[T2D] = Made("BOOL", (spec.vocab_size,), bytes(flags))
    return made
