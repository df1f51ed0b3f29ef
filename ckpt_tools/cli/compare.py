"""`ckpt-tools compare`."""

from __future__ import annotations

from pathlib import Path

import click

from ..compare import Comparison, compare, places
from ..errors import ExitCode, Finding
from ..model import open_model, rows_of
from ..refs import resolve, resolve_headers
from ..report import listed
from .heat_map import maps, write
from .options import hf_config, talking
from .output import Output

SHOWN = 40


@click.command("compare")
@click.argument("a")
@click.argument("b")
@hf_config
@click.option(
    "--heat-map",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw what moved, by layer, component and expert: FILE.html, or FILE.png with the extra `plot`.",
)
@talking("compare")
def command(out: Output, a: str, b: str, hf_config: str | None, heat_map: Path | None) -> int:
    """Say whether A and B hold the same logical tensors, whatever their formats, dtypes and shardings.

    Of two steps of a training it says what moved: per tensor |a - b| / |a|, the MTP layers against the body, and what stood
    still.
    """
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
    if heat_map is not None:
        write(heat_map, maps(found, places(rows_of(left))), f"{a} and {b}")
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
    if found.differences:
        medians = (("body", found.body_change), ("MTP", found.mtp_change))
        rows += [
            (f"moved, {what}", f"{change:.3g} of its norm (median)") for what, change in medians if change is not None
        ]
    if found.frozen:
        rows.append(("did not move", listed(found.frozen)))
    out.pairs(rows)
    if found.differences:
        out.line()
        table = [
            (d.name, d.status, _figure(d.max_abs), _figure(d.relative), d.a, d.b) for d in found.differences[:SHOWN]
        ]
        out.table(("tensor", "status", "max |a-b|", "|a-b|/|a|", "A", "B"), table, right=(2, 3))
        if len(found.differences) > SHOWN:
            out.hint(f"{len(found.differences) - SHOWN} more; --json lists all")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
