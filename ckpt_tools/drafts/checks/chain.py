"""The three numbers of speculation: steps, top-k, draft tokens."""

from __future__ import annotations

from ...errors import Finding
from ..spec import MTP
from .pair import Pair

NAME = "speculation"


def check_chain(pair: Pair) -> None:
    """L6: a chain verifies its root as well, so it has steps + 1 tokens; (3, 1, 4) is no mistake."""
    rules = pair.rules
    if rules.steps is None:
        return
    topk = 1 if rules.topk is None else rules.topk
    tokens = rules.steps + 1 if rules.draft_tokens is None else rules.draft_tokens
    most = rules.steps + 1 if topk == 1 else sum(topk ** min(step, 2) for step in range(rules.steps + 1))
    if rules.steps < 1 or topk < 1:
        _wrong(pair, "steps and top-k of 1 or more", f"steps {rules.steps}, top-k {topk}")
    elif topk == 1 and tokens != rules.steps + 1:
        _wrong(pair, f"{rules.steps + 1} draft tokens: {rules.steps} steps and the verified root", str(tokens))
    elif not 2 <= tokens <= most:
        _wrong(pair, f"2 to {most} draft tokens of a tree", str(tokens))
    else:
        pair.passed(NAME, f"{rules.steps} steps, top-k {topk}", f"{tokens} draft tokens")
        if pair.spec.kind == MTP and rules.steps > pair.spec.mtp_layers:
            pair.report.note(
                "mtp-layer-reused", f"{pair.spec.mtp_layers} MTP layer serves {rules.steps} steps, one after another"
            )


def _wrong(pair: Pair, expected: str, actual: str) -> None:
    what = "steps, top-k and draft tokens do not go together"
    pair.found(NAME, Finding("spec-args", what, "", expected, actual, "correct the server's arguments"))
