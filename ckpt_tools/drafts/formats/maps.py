"""The vocabulary maps of a head: whether they can be what they say, and as tensors to write."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from ...errors import CkptError, Finding
from ...report import listed
from ..spec import BOOLEANS, D2T, T2D, DraftSpec
from .writing import Made


def made_maps(spec: DraftSpec, mask_needed: bool) -> dict[str, Made]:
    """What must be made anew: maps out of a side file, d2t that is not int64 or not there while t2d is; where the mask is
    needed, a t2d that is not there.

    Raises CkptError for maps of other dtypes and, where the mask is needed, for a d2t that leads astray.
    """
    offsets = spec.d2t()
    mask = spec.t2d() if offsets is None or mask_needed else None
    made: dict[str, Made] = {}
    if offsets is None and mask is not None:
        offsets = array("q", (j - i for i, j in enumerate(j for j, flag in enumerate(mask) if flag)))
    if offsets is None:
        return made
    if D2T not in spec.tensors or spec.tensors[D2T].dtype != "I64":
        made[D2T] = Made("I64", (len(offsets),), array("q", offsets).tobytes())
    if not mask_needed:
        return made
    if problem := targets_problem(spec, spec.vocab_size, offsets):
        raise CkptError(problem)
    if T2D not in spec.tensors:
        flags = bytearray(spec.vocab_size)
        for target in targets_of(offsets):
            flags[target] = 1
        made[T2D] = Made("BOOL", (spec.vocab_size,), bytes(flags))
    return made


def targets_of(offsets: Sequence[int]) -> list[int]:
    """The target ids of the draft's ids."""
    return [number + offset for number, offset in enumerate(offsets)]


def marked_ids(spec: DraftSpec) -> set[int] | None:
    """The target ids that t2d marks, if the head has a readable t2d."""
    entry = spec.tensors.get(T2D)
    if entry is None or entry.dtype not in BOOLEANS:
        return None
    return {number for number, flag in enumerate(spec.t2d() or b"") if flag}


def targets_problem(spec: DraftSpec, vocab: int, offsets: array[int]) -> Finding | None:
    """Why offsets cannot be the map into `vocab` target ids, if they cannot."""
    where, targets = str(spec.source), targets_of(offsets)
    if _absolute(spec, vocab, offsets, targets):
        return Finding(
            "d2t-absolute",
            "d2t holds target ids where offsets belong",
            where,
            "offsets: target id minus draft id",
            f"{listed(map(str, offsets[:6]))}, ...",
            "subtract the index: d2t[i] - i; the server would take other tokens",
        )
    if outside := [target for target in targets if not 0 <= target < vocab]:
        return Finding(
            "d2t-range",
            f"{len(outside)} draft ids lead outside of the target's vocabulary",
            where,
            f"ids from 0 to {vocab - 1}",
            f"{max(outside, key=abs)} of {vocab}",
            "the map belongs to another target",
        )
    if twice := len(targets) - len(set(targets)):
        return Finding(
            "d2t-duplicates",
            f"{twice} draft ids lead to a target id that another has",
            where,
            "every target id once",
            f"{len(set(targets))} distinct of {len(targets)}",
            "build the map again from the trainer's list of ids",
        )
    return None


def _absolute(spec: DraftSpec, vocab: int, offsets: array[int], targets: Sequence[int]) -> bool:
    """Ids where offsets belong: t2d tells; else ids that always rise, and leave the vocabulary with the index added."""
    if len(offsets) < 2 or not any(offsets):
        return False
    marked = marked_ids(spec)
    if marked is not None:
        return set(offsets) == marked != set(targets)
    rising = all(a < b for a, b in pairwise(offsets))
    return rising and offsets[0] >= 0 and offsets[-1] < vocab <= max(targets)
