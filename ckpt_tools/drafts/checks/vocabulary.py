"""Vocabularies: sizes, tokenizers, and the map from draft ids to target ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from ...errors import Finding
from ...report import listed
from ..spec import D2T, EAGLE3, HEAD, T2D
from ..vocab_map import read_ids
from .pair import Pair

VOCABULARY, TOKENIZER, MAP = "vocabulary", "tokenizer", "draft vocabulary"
PADDING_FLAG, PREFIX_FLAG = "--allow-vocab-padding", "--allow-prefix-vocab"
INTEGERS, BOOLEANS = ("I64", "I32"), ("BOOL", "U8")


def check_vocabulary(pair: Pair) -> None:
    """D4: rows that no token reaches may differ, if the tokenizers agree and the user says so."""
    own, wanted = pair.spec.vocab_size, pair.target.vocab_size
    mine, theirs = pair.own_tokenizer, pair.target_tokenizer
    agree = _check_tokenizers(pair)
    if own == wanted:
        pair.passed(VOCABULARY, wanted, own)
        return
    used = theirs.size if theirs else 0
    if pair.spec.kind == EAGLE3 and agree and mine and 0 < used <= min(own, wanted):
        allowed = pair.rules.allow_vocab_padding
        pair.found(
            VOCABULARY,
            Finding(
                "vocab-padding-only",
                f"the vocabularies differ in padding rows only: {used} ids are used",
                where=str(pair.spec.config_path),
                expected=f"{wanted} rows",
                actual=f"{own} rows",
                fix=f"allowed by {PADDING_FLAG}" if allowed else f"{PADDING_FLAG} lets such a pair pass",
                severity="warning" if allowed else "error",
            ),
        )
        return
    shared = "" if pair.spec.kind == EAGLE3 else "; it shares the target's embedding, so every row counts"
    pair.found(
        VOCABULARY,
        Finding(
            "vocab-size",
            f"the head was made for another vocabulary{shared}",
            where=str(pair.spec.config_path),
            expected=f"{wanted} rows",
            actual=f"{own} rows",
            fix="name the target that the head was trained for",
        ),
    )


def _check_tokenizers(pair: Pair) -> bool:
    """Whether the head's tokenizer, if it brings one, is the target's."""
    mine, theirs = pair.own_tokenizer, pair.target_tokenizer
    if mine is None or theirs is None:
        pair.skipped(TOKENIZER, "the head brings none" if mine is None else "the target brings none")
        return False
    difference = mine.first_difference(theirs)
    if difference is None:
        pair.passed(TOKENIZER, f"{theirs.size} ids", f"{mine.size} ids, the same")
        return True
    number, here, there = difference
    pair.found(
        TOKENIZER,
        Finding(
            "tokenizer-mismatch",
            f"the tokenizers differ from id {number} on",
            where=str(mine.source),
            expected=f"{there!r} at id {number}",
            actual=f"{here!r}",
            fix="a head speaks its target's tokens: name the target that it was trained for",
        ),
    )
    return False


def check_map(pair: Pair) -> None:
    """d2t holds offsets: draft id i is target id i + d2t[i]."""
    spec = pair.spec
    if spec.kind != EAGLE3:
        return
    if D2T not in spec.tensors:
        if spec.draft_vocab_size == spec.vocab_size:
            pair.passed(MAP, "every target id", "identity mapping (no d2t)")
        return
    entry = spec.tensors[D2T]
    if entry.dtype not in INTEGERS or len(entry.shape) != 1:
        pair.found(
            MAP,
            _map_finding(
                pair,
                "d2t-dtype",
                "d2t holds no list of integers",
                "I64 [draft vocabulary]",
                f"{entry.dtype} {list(entry.shape)}",
                "write it as int64 offsets",
            ),
        )
        return
    offsets = spec.d2t()
    assert offsets is not None
    problems = _map_problems(pair, offsets)
    for finding in problems:
        pair.found(MAP, finding)
    if not problems:
        what = "identity mapping" if not any(offsets) else f"{len(offsets)} distinct target ids"
        pair.passed(MAP, f"{spec.draft_vocab_size} of {pair.target.vocab_size} ids", what)


def _map_problems(pair: Pair, offsets: array[int]) -> list[Finding]:
    spec, vocab = pair.spec, pair.target.vocab_size
    found: list[Finding] = []
    rows = spec.tensors[HEAD].shape[0] if HEAD in spec.tensors and not spec.borrows_head else spec.draft_vocab_size
    if len(offsets) != rows:
        found.append(
            _map_finding(
                pair,
                "d2t-length",
                "d2t and lm_head disagree about the draft vocabulary",
                f"{rows} entries, as lm_head has rows",
                str(len(offsets)),
                "export the head again",
            )
        )
    targets = [number + offset for number, offset in enumerate(offsets)]
    if _absolute(pair, offsets, targets):
        found.append(
            _map_finding(
                pair,
                "d2t-absolute",
                "d2t holds target ids where offsets belong",
                "offsets: target id minus draft id",
                f"{listed(map(str, offsets[:6]))}, ...",
                "subtract the index: d2t[i] - i; the server would take other tokens",
            )
        )
    elif outside := [target for target in targets if not 0 <= target < vocab]:
        found.append(
            _map_finding(
                pair,
                "d2t-range",
                f"{len(outside)} draft ids lead outside of the target's vocabulary",
                f"ids from 0 to {vocab - 1}",
                f"{max(outside, key=abs)} of {vocab}",
                "the map belongs to another target",
            )
        )
    elif len(set(targets)) != len(targets):
        twice = len(targets) - len(set(targets))
        found.append(
            _map_finding(
                pair,
                "d2t-duplicates",
                f"{twice} draft ids lead to a target id that another has",
                "every target id once",
                f"{len(set(targets))} distinct of {len(targets)}",
                "build the map again from the trainer's list of ids",
            )
        )
    if not any(offsets) and len(offsets) < vocab:
        allowed = pair.rules.allow_prefix_vocab
        found.append(
            _map_finding(
                pair,
                "d2t-default",
                f"the mapping is the identity prefix 0..{len(offsets) - 1}",
                "the most frequent ids of the training data",
                "all offsets zero, as a fresh model has",
                f"allowed by {PREFIX_FLAG}"
                if allowed
                else f"build the map from token counts; {PREFIX_FLAG} if the prefix is meant",
                "warning" if allowed else "error",
            )
        )
    found += _t2d_problems(pair, targets)
    return found


def _absolute(pair: Pair, offsets: array[int], targets: Sequence[int]) -> bool:
    """Ids where offsets belong: t2d tells; else ids that always rise, and leave the vocabulary with the index added."""
    vocab = pair.target.vocab_size
    if len(offsets) < 2 or not any(offsets):
        return False
    marked = _marked(pair)
    if marked is not None:
        return set(offsets) == marked != set(targets)
    rising = all(a < b for a, b in pairwise(offsets))
    return rising and offsets[0] >= 0 and offsets[-1] < vocab <= max(targets)


def _marked(pair: Pair) -> set[int] | None:
    """The target ids that t2d marks, if the head has a readable t2d."""
    entry = pair.spec.tensors.get(T2D)
    if entry is None or entry.dtype not in BOOLEANS:
        return None
    flags = pair.spec.t2d() or b""
    return {number for number, flag in enumerate(flags) if flag}


def _t2d_problems(pair: Pair, targets: Sequence[int]) -> list[Finding]:
    marked = _marked(pair)
    if marked is None or marked == set(targets):
        return []
    return [
        _map_finding(
            pair,
            "t2d-disagrees",
            "t2d marks other ids than d2t leads to",
            f"{len(set(targets))} ids marked",
            f"{len(marked)} marked, {len(marked & set(targets))} of them in d2t",
            "one of the two is stale; rebuild t2d from d2t, or d2t from the trainer's list",
        )
    ]


def _map_finding(
    pair: Pair, code: str, what: str, expected: str, actual: str, fix: str, severity: str = "error"
) -> Finding:
    return Finding(code, what, str(pair.spec.source), expected, actual, fix, severity)


def check_token_map(pair: Pair) -> None:
    """`--speculative-token-map`: a list of target ids for an EAGLE-1 head, saved by torch or as JSON."""
    path = pair.rules.token_map
    if path is None:
        return
    ids, vocab = read_ids(path), pair.target.vocab_size
    outside = [number for number in ids if not 0 <= number < vocab]
    if outside or len(set(ids)) != len(ids):
        code = "d2t-range" if outside else "d2t-duplicates"
        pair.found(
            "token map",
            Finding(
                code,
                "the token map does not fit the target's vocabulary",
                str(path),
                f"distinct ids from 0 to {vocab - 1}",
                f"{max(outside, key=abs)} of {vocab}" if outside else "ids twice",
                "the map belongs to another target",
            ),
        )
    else:
        pair.passed("token map", f"ids below {vocab}", f"{len(ids)} ids")
