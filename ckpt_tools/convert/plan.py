"""What a plan is, and what both directions need to make one."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.program import Program
from ..mapping.rules import Rule, Table
from ..stores.dtypes import FLOATS


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked program and what it was decided from; `dtypes` are source dtypes that the output does not show.

    `carried` is the number of tensors that no table row makes.
    """

    program: Program
    table: Table
    mtp: int
    layout: str
    padded_vocab: int
    dtypes: dict[str, str]
    carried: int = 0


def target_dtype(rule: Rule, source: str, wanted: str | None) -> str:
    """Floating tensors take the dtype asked for, unless their rule pins their own."""
    return wanted if wanted and source in FLOATS and not rule.keep_dtype else source


def natural_order(name: str) -> tuple[tuple[bool, int | str], ...]:
    """Sort key under which layer 10 follows layer 9."""
    return tuple((not piece.isdigit(), int(piece) if piece.isdigit() else piece) for piece in name.split("."))
