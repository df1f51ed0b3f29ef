"""Rope and context length."""

from __future__ import annotations

from ...errors import Finding
from ...families.config import Fields
from ...families.dims import Rope
from ...families.reading import LLAMA_ROPE_THETA, read_rope
from ..identity import decimal, scalar
from .pair import Pair

CONTEXT, ROPE = "context length", "rope"


def check_context(pair: Pair) -> None:
    """F10: SGLang refuses a head that is shorter than its target; others clamp its positions."""
    own, wanted = pair.spec.max_position_embeddings, pair.target.max_position_embeddings
    if own is not None and own >= wanted:
        pair.passed(CONTEXT, f"at least {wanted}", own)
        return
    pair.found(
        CONTEXT,
        Finding(
            "draft-context-short",
            "the head's max_position_embeddings is below the target's"
            + (": SGLang refuses it at start" if pair.sglang else ", its rope is clamped there"),
            where=str(pair.spec.config_path),
            expected=f"at least {wanted}",
            actual=str(own) if own is not None else "absent",
            fix="export-draft raises it; trainers write their training length there",
            severity="error" if pair.sglang else "warning",
        ),
    )


def check_rope(pair: Pair) -> None:
    """F11: a head is trained with its target's rotary embedding."""
    theirs = pair.target.dims.rope if pair.target.dims else _stated(pair)
    if theirs is None:
        pair.skipped(ROPE, "the target's config states it in a way that is not read")
        return
    own, wanted = rope_text(pair.spec.rope), rope_text(theirs)
    if own == wanted:
        pair.passed(ROPE, wanted, own)
        return
    pair.found(
        ROPE,
        Finding(
            "rope-differs",
            "the head's rotary embedding is not the target's",
            where=str(pair.spec.config_path),
            expected=wanted,
            actual=own,
            fix="if the head was trained with the target's, copy rope_theta and rope_scaling into its config.json",
            severity="warning",
        ),
    )


def _stated(pair: Pair) -> Rope | None:
    """The rope of a target that no family knows."""
    fields = Fields(pair.target.config, str(pair.target.config_path))
    rope = read_rope(fields, LLAMA_ROPE_THETA)
    return None if fields.report.errors else rope


def rope_text(rope: Rope) -> str:
    """All of it on one line; numbers as float32, so that 32 and 32.0 are one."""
    scaling = [f"{name} {scalar(value)}" for name, value in rope.scaling if name != "partial_rotary_factor"]
    return ", ".join([f"theta {decimal(rope.theta)}", rope.kind, *scaling])
