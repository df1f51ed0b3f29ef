"""The embedding and the lm_head: the head's own, a copy of the target's, or absent; and which of them the server uses."""

from __future__ import annotations

from ...difference import max_difference
from ...engine.view import View, handles_for
from ...errors import Finding
from ..spec import EAGLE3, EMBED, HEAD, MTP, HeadTensor
from .pair import Pair, TableUse

OWN, EQUAL, ABSENT = "own", "equal to the target's", "absent"
THE_HEADS, THE_TARGETS = "the head's", "the target's"
LABELS = {EMBED: "embedding", HEAD: "lm_head"}
COMPARED = 1 << 28  # bytes up to which tables are compared completely
ROWS = 1024


def check_tables(pair: Pair) -> None:
    for name in (EMBED, HEAD):
        _check_table(pair, name)


def served(pair: Pair, name: str) -> str:
    """Whose table the server uses. vLLM keeps an embedding that an EAGLE head stores, SGLang one of another width only."""
    spec = pair.spec
    if name == EMBED and not pair.sglang and spec.kind != MTP:
        return THE_HEADS if EMBED in spec.tensors else THE_TARGETS
    if spec.kind != EAGLE3:
        return THE_TARGETS
    if name == EMBED:
        return THE_HEADS if spec.hidden_size != spec.target_hidden_size else THE_TARGETS
    return THE_TARGETS if spec.borrows_head else THE_HEADS


def _check_table(pair: Pair, name: str) -> None:
    entry, whose, label = pair.spec.tensors.get(name), served(pair, name), LABELS[name]
    if entry is None:
        pair.tables.append(TableUse(label, ABSENT, whose))
        if whose == THE_TARGETS:
            pair.passed(label, whose, ABSENT)
        return
    if pair.rules.headers_only:
        pair.skipped(label, "weights were not downloaded")
        return
    theirs = pair.target_table(output=name == HEAD)
    if theirs is None or theirs.tensor.shape != entry.shape:
        pair.tables.append(TableUse(label, OWN, whose, entry.tensor.nbytes))
        if theirs is None and whose == THE_TARGETS:
            pair.found(label, _unchecked(pair, name))
        else:
            pair.passed(label, whose, f"own, {list(entry.shape)}")
        return
    _compare(pair, name, entry, theirs)


def _compare(pair: Pair, name: str, entry: HeadTensor, theirs: View) -> None:
    label, whose = LABELS[name], served(pair, name)
    handles = handles_for(list(entry.files))
    try:
        difference = difference_of(View(entry.tensor, list(entry.moves), handles), theirs)
    finally:
        handles.close()
    stored = OWN if difference else EQUAL
    pair.tables.append(TableUse(label, stored, whose, entry.tensor.nbytes))
    if difference and whose == THE_TARGETS:
        pair.found(
            label,
            Finding(
                "embed-mismatch" if name == EMBED else "lm-head-mismatch",
                f"the head stores an {label} of its own, and the server puts the target's in its place",
                where=str(pair.spec.source),
                expected="absent, or equal to the target's",
                actual=difference,
                fix="if it was trained, this server cannot serve it; if it was initialised and saved, drop it",
            ),
        )
    elif difference:
        pair.passed(label, whose, f"own: {difference}")
    else:
        pair.passed(label, whose, f"{EQUAL}; {entry.tensor.nbytes:,} bytes that need not be stored")


def difference_of(a: View, b: View) -> str:
    """ "" if two tables are equal, else how they differ; of tables beyond COMPARED bytes a few rows are looked at."""
    rows = a.tensor.shape[0]
    if a.tensor.nbytes > COMPARED:
        looked = range(0, rows, max(1, rows // ROWS))
        equal = sum(_row(a, row) == _row(b, row) for row in looked)
        return "" if equal == len(looked) else f"{equal} of {len(looked)} sampled rows equal"
    worst = max_difference(a, b)
    if worst is None:
        return ""
    equal = sum(_row(a, row) == _row(b, row) for row in range(min(rows, ROWS)))
    return f"max |difference| {worst:g}, {equal} of the first {min(rows, ROWS)} rows equal"


def _row(view: View, row: int) -> bytearray:
    width = view.tensor.nbytes // view.tensor.shape[0]
    return view.read(row * width, (row + 1) * width)


def _unchecked(pair: Pair, name: str) -> Finding:
    return Finding(
        "table-unchecked",
        f"the head stores an {LABELS[name]}, which the server replaces; the target's weights are not here to compare",
        where=str(pair.spec.source),
        expected="equal to the target's",
        actual="unknown",
        fix="give a target with its weights",
        severity="warning",
    )
