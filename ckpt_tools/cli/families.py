"""`ckpt-tools families`."""

from __future__ import annotations

import click

from ..support import MARKDOWN_HEADERS, Support, matrix
from .options import talking
from .output import Output


@click.command("families")
@click.option("--markdown", is_flag=True, help="As a Markdown table (the README's).")
@talking("families")
def command(out: Output, markdown: bool) -> int:
    """Print the support matrix, generated from the tables."""
    found = matrix()
    return out.finish(found, (), lambda: _show(out, found, markdown))


def _show(out: Output, found: Support, markdown: bool) -> None:
    rows = [found.row(family) for family in found.families]
    if markdown:
        for row in (MARKDOWN_HEADERS, ["---"] * len(MARKDOWN_HEADERS), *rows):
            out.line("| " + " | ".join(row) + " |")
    else:
        out.table(MARKDOWN_HEADERS, rows)
