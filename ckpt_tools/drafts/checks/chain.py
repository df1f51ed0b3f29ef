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
    if problem := chain_problem(rules.steps, topk, rules.draft_tokens):
        pair.found(NAME, problem)
        return
    tokens = rules.steps + 1 if rules.draft_tokens is None else rules.draft_tokens
    pair.passed(NAME, f"{rules.steps} steps, top-k {topk}", f"{tokens} draft tokens")
    if pair.spec.kind == MTP and rules.steps > pair.spec.mtp_layers:
        pair.report.note(
            "mtp-layer-reused", f"{pair.spec.mtp_layers} MTP layer serves {rules.steps} steps, one after another"
        )


def chain_problem(steps: int, topk: int, draft_tokens: int | None) -> Finding | None:
    """What is wrong with the three numbers, or None; `draft_tokens` None is what SGLang chooses: steps + 1."""
    tokens = steps + 1 if draft_tokens is None else draft_tokens
    most = steps + 1 if topk == 1 else sum(topk ** min(step, 2) for step in range(steps + 1))
    if steps < 1 or topk < 1:
        return _wrong("steps and top-k of 1 or more", f"steps {steps}, top-k {topk}")
    if topk == 1 and tokens != steps + 1:
        return _wrong(f"{steps + 1} draft tokens: {steps} steps and the verified root", str(tokens))
    if not 2 <= tokens <= most:
        return _wrong(f"2 to {most} draft tokens of a tree", str(tokens))
    return None


def _wrong(expected: str, actual: str) -> Finding:
    what = "steps, top-k and draft tokens do not go together"
    return Finding("spec-args", what, "", expected, actual, "correct the server's arguments")
