"""`ckpt-tools serve-args`."""

from __future__ import annotations

from pathlib import Path

import click

from ..launch.serving import FORMS, ServeArgs, serve_args
from .options import talking
from .output import Output


@click.command("serve-args")
@click.argument("target")
@click.argument("draft", required=False)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Depth: draft steps per verification.")
@click.option(
    "--for", "form", type=click.Choice(FORMS), default=FORMS[0], show_default=True, help="Who takes the flags."
)
@click.option(
    "--smoke", type=click.Path(path_type=Path), metavar="REPORT", help="Choose the depth by a `smoke --json`."
)
@click.option("--server-version", default="", metavar="VERSION", help="Of SGLang or vLLM [default: the latest known].")
@click.option(
    "--with-paths", is_flag=True, help="Write the local path of the head; it is left out of what may be shared."
)
@talking("serve-args")
def command(
    out: Output,
    target: str,
    draft: str | None,
    steps: int | None,
    form: str,
    smoke: Path | None,
    server_version: str,
    with_paths: bool,
) -> int:
    """Print the flags with which a server speculates for TARGET, one per line.

    Without DRAFT the MTP layers of TARGET itself draft. A DRAFT that does not fit TARGET is refused.
    """
    found, findings = serve_args(target, draft, steps, form, smoke, server_version, with_paths)
    return out.finish(found, findings, lambda: _show(out, found))


def _show(out: Output, found: ServeArgs) -> None:
    for flag in found.flags:
        out.line(flag)
    for gain in found.gains:
        mark = " <" if gain.steps == found.steps else ""
        expected = f"expected {gain.speed_up:.2f} x the target alone{mark}"
        out.hint(f"{gain.steps} steps: accept length {gain.accept_length:.2f}, {expected}")
