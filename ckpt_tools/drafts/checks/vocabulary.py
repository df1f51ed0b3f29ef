"""Vocabularies: sizes, tokenizers, and the map from draft ids to target ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ...errors import CkptError, Finding
from ..formats.maps import marked_ids, targets_of, targets_problem
from ..spec import D2T, EAGLE3, HEAD
from ..vocab_map import read_ids
from .pair import Pair

VOCABULARY, TOKENIZER, MAP = "vocabulary", "tokenizer", "draft vocabulary"
PADDING_FLAG, PREFIX_FLAG = "--allow-vocab-padding", "--allow-prefix-vocab"


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
    try:
        offsets = spec.d2t()
    except CkptError as problem:
        for finding in problem.findings:
            pair.found(MAP, finding)
        return
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
    if problem := targets_problem(spec, vocab, offsets):
        found.append(problem)
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
    found += _t2d_problems(pair, targets_of(offsets))
    return found


def _t2d_problems(pair: Pair, targets: Sequence[int]) -> list[Finding]:
    marked = marked_ids(pair.spec)
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
