"""One command in several processes: rank 0 alone speaks, and all end with the same exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ..engine.output import WriteFailed
from ..engine.ranks import ALONE, Elsewhere, Failure, Ranks, join, several
from ..refs.client import Unreachable
from .boundary import explain
from .output import Output

INTERRUPTS = (KeyboardInterrupt, SystemExit)


@contextmanager
def together(out: Output) -> Iterator[Ranks]:
    """The ranks of a command that torchrun started, or this process alone."""
    if not several():
        yield ALONE
        return
    ranks = join(_failure)
    try:
        with ranks.watching():
            yield ranks
    except BaseException as problem:
        ranks.abort(problem)
        findings, code = explain(problem)
        if ranks.first:
            out.fail(findings, code)
        if not ranks.part() and not ranks.first:
            raise  # rank 0 cannot speak any more
        raise click.exceptions.Exit(code) from problem
    ranks.part()


def _failure(problem: BaseException) -> Failure:
    if isinstance(problem, Elsewhere):
        return problem.failure
    findings, code = explain(problem)
    return Failure(-1, findings, code, isinstance(problem, (WriteFailed, Unreachable, *INTERRUPTS)))
