"""An lm_head for a head that has none: the target's rows, gathered by the draft vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ..engine.moves import Move
from ..errors import CkptError, Finding, error
from ..model import EMBEDDING, open_model
from ..stores.base import Chunk, Tensor
from ..stores.hf_folder import HfFolder
from .checks.pair import OUTPUT_LAYER
from .spec import EAGLE3, HEAD, DraftSpec, HeadTensor

CURED = "lm-head-missing"


def with_targets_rows(spec: DraftSpec, target: Path) -> DraftSpec:
    """The head with row j of its lm_head equal to the target's row j + d2t[j] (row j where nothing is reduced).

    Raises CkptError where the head has an lm_head, is of another width, or the target is no Hugging Face model with weights.
    """
    model = open_model(target)
    rules = {rule.spellings[0].template: rule for rule in model.table.rules if not rule.axes}
    name = (rules.get(OUTPUT_LAYER) or rules[EMBEDDING]).hf[0]
    if problem := _problem(spec, isinstance(model.store, HfFolder), model.dims.hidden_size):
        what, expected, actual = problem
        raise error(
            CkptError,
            "lm-head-not-taken",
            f"the target's lm_head cannot stand for the head's: {what}",
            where=str(spec.source),
            expected=expected,
            actual=actual,
            fix="leave --lm-head-from-target out",
        )
    table = model.store.tensors[name]
    (chunk,) = table.chunks
    offsets = spec.d2t()
    ids = (
        [row + offsets[row] for row in range(spec.draft_vocab_size)] if offsets else list(range(spec.draft_vocab_size))
    )
    if outside := [number for number in ids if not 0 <= number < table.shape[0]]:
        raise error(
            CkptError,
            "d2t-range",
            "ids outside of the target's vocabulary",
            where=str(spec.source),
            expected=f"ids from 0 to {table.shape[0] - 1}",
            actual=str(max(outside, key=abs)),
            fix="the map belongs to another target",
        )
    shape = (len(ids), table.shape[1])
    made = Tensor(HEAD, table.dtype, shape, (Chunk(0, 0, (0, 0), shape),))
    moves = tuple(_gathered(ids, chunk.offset, table.shape[1] * table.itemsize))
    entry = HeadTensor(name, made, (model.store.files[chunk.file],), moves)
    kept = tuple(finding for finding in spec.findings if finding.code != CURED)
    note = Finding("lm-head-taken", f"lm_head is {len(ids)} rows of the target's {name}", str(target), severity="note")
    return replace(spec, tensors={**spec.tensors, HEAD: entry}, findings=(*kept, note))


def _problem(spec: DraftSpec, stored: bool, width: int) -> tuple[str, str, str] | None:
    if spec.kind != EAGLE3 or spec.borrows_head or HEAD in spec.tensors:
        return "it needs none", "an EAGLE-3 head without lm_head", "an lm_head, or one that the server takes anyway"
    if not stored:
        return "the target is no Hugging Face folder", "a Hugging Face folder with weights", "a torch-dist directory"
    if spec.hidden_size != width:
        return "its rows are of another width", f"hidden size {width}", str(spec.hidden_size)
    return None


def _gathered(ids: Iterable[int], start: int, width: int) -> Iterator[Move]:
    """Rows in the order of `ids`, neighbours at once."""
    numbers = list(ids)
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1), len(numbers)]
    for first, stop in pairwise(breaks):
        nbytes = (stop - first) * width
        yield Move(0, start + numbers[first] * width, nbytes, 0, first * width, nbytes, nbytes, 1, None, nbytes)
