"""Padding of the vocabulary: the rows that training makes of it, against those that are stored."""

from __future__ import annotations

from ..errors import Finding
from ..families.arguments import padded_vocabulary
from .case import Case

DIVISIBLE_BY = 128  # Megatron's default of --make-vocab-size-divisible-by


def check_vocabulary(case: Case) -> None:
    """D1: the rows that training pads the vocabulary to, against those that are stored."""
    name, vocab = "padded vocabulary", case.number(case.training, "vocab-size")
    tp = case.number(case.training, "tensor-model-parallel-size") or 1
    divisible_by = case.number(case.training, "make-vocab-size-divisible-by") or DIVISIBLE_BY
    if case.stored is None or vocab is None or vocab < 1 or min(tp, divisible_by) < 1:
        case.skipped(name, "no torch-dist" if case.stored is None else "no --vocab-size")
        return
    wanted = case.number(case.training, "padded-vocab-size") or padded_vocabulary(vocab, divisible_by, tp)
    stored = case.stored.stored_vocab
    if stored == wanted:
        case.passed(name, f"{wanted} rows", f"{stored} rows")
        return
    case.found(
        name,
        Finding(
            "padded-vocab",
            f"training pads {vocab} rows to a multiple of {divisible_by} x {tp}, and the checkpoint was padded to another size",
            where=str(case.stored.store.root),
            expected=f"{wanted} rows",
            actual=f"{stored} rows",
            fix=f"convert with --tp {tp} --make-vocab-size-divisible-by {divisible_by}, or accept it with "
            "--allow-vocab-padding: Megatron fills or cuts padding rows of torch-dist",
            severity="warning" if case.allow_vocab_padding and min(stored, wanted) >= vocab else "error",
        ),
    )
