"""What the commands that write draft heads share: options, the name of a target, how their result is shown."""

from __future__ import annotations

from pathlib import Path

import click

from ..drafts.export import Exported
from ..refs import HUB_PREFIX
from .output import Output, human_bytes

target_name = click.option(
    "--target-name", metavar="ORG/NAME", help="How the target is called in what is written; a Hub id says so itself."
)


def called(ref: str, name: str | None) -> str:
    """The name to record: as given, or the Hub id; a local path is nobody else's business."""
    if name:
        return name
    local = not ref.startswith(HUB_PREFIX) and Path(ref).expanduser().exists()
    return "" if local else ref.removeprefix(HUB_PREFIX)


def show(out: Output, result: Exported) -> None:
    verb = "would write" if result.dry_run else "wrote"
    rows = [
        (verb, f"{result.destination} ({result.kind}, {result.format})"),
        ("architecture", result.architecture),
        ("head from", f"{result.source} ({result.source_format})"),
        ("target", result.target),
        ("tensors", f"{result.tensors}, {human_bytes(result.nbytes)}"),
    ]
    if result.unchanged:
        rows.append(("files", f"{result.files} written, {result.unchanged} taken over unread"))
    if result.made:
        rows.append(("added", ", ".join(result.made)))
    if result.verified:
        rows.append(("verified", "the head fits its target"))
    out.pairs(rows)
