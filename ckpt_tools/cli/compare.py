"""`ckpt-tools compare`."""

from __future__ import annotations

import click

from ..compare import Comparison, compare
from ..errors import ExitCode, Finding
from ..model import open_model
from ..refs import resolve, resolve_headers
from .options import hf_config, talking
from .output import Output

SHOWN = 40


@click.command("compare")
@click.argument("a")
@click.argument("b")
@hf_config
@talking("compare")
def command(out: Output, a: str, b: str, hf_config: str | None) -> int:
    """Say whether A and B hold the same logical tensors, whatever their formats, dtypes and shardings."""
    config = resolve(hf_config, weights=False) if hf_config else None
    left, right = (
        open_model(
            path,
            config if (path / "latest_checkpointed_iteration.txt").exists() or (path / ".metadata").exists() else None,
        )
        for path in (resolve_headers(a).path, resolve_headers(b).path)
    )
    with out.progress("comparing") as starting:
        found = compare(left, right, starting(sum(t.nbytes for t in left.store.tensors.values())))
    findings = [_unmoved()] if found.mtp_unmoved else []
    code = ExitCode.OK if found.same else ExitCode.FAILED
    return out.finish(found, findings, lambda: _show(out, found), code)


def _unmoved() -> Finding:
    return Finding(
        "mtp-unmoved",
        "the body differs and the MTP head is bit-equal",
        expected="a head that was trained along, or a note that it is frozen",
        actual="every MTP tensor equal",
        fix="train the head (--mtp-num-layers 1 --enable-mtp-training), or check that the export took the trained one",
        severity="warning",
    )


def _show(out: Output, found: Comparison) -> None:
    rows = [("equal", f"{found.equal} tensors bit by bit")]
    if found.equal_values:
        rows.append(("equal values", f"{found.equal_values} tensors in different dtypes"))
    if found.mtp_tensors:
        rows.append(("MTP", f"{found.mtp_equal} of {found.mtp_tensors} tensors equal"))
    rows.append(("different", f"{len(found.differences)} tensors"))
    out.pairs(rows)
    if found.differences:
        out.line()
        worst = (("" if d.max_abs is None else f"{d.max_abs:.3g}") for d in found.differences)
        table = [(d.name, d.status, w, d.a, d.b) for d, w in zip(found.differences, worst, strict=True)]
        out.table(("tensor", "status", "max |a-b|", "A", "B"), table[:SHOWN], right=(2,))
        if len(table) > SHOWN:
            out.hint(f"{len(table) - SHOWN} more; --json lists all")
