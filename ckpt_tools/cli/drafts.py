"""What the commands that write draft heads share: options, the name of a target, how their result is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..drafts.checks.origin import identify_target
from ..drafts.export import Exported
from ..drafts.identity import record
from ..drafts.verify import verify_draft
from ..errors import CkptError, Finding
from ..refs import HUB_PREFIX, expanded
from .output import Output, human_bytes

target_name = click.option(
    "--target-name", metavar="ORG/NAME", help="How the target is called in what is written; a Hub id says so itself."
)

verifying = click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Check the written head against its target (verify-draft).",
)


def verified(folder: Path, target: Path) -> Sequence[Finding]:
    """What verify-draft says of a folder that is about to get its name."""
    return verify_draft(folder, target).findings


def merged(folder: Path, target: Path) -> Sequence[Finding]:
    """As `verified`; a model with its head inside is its own target."""
    return verify_draft(folder, folder).findings


def identity_of(target: Path, weights: bool = True) -> dict[str, Any]:
    """The hashes of a target for the manifest, those of its `weights` on request; none of a model that no family knows."""
    try:
        return record(identify_target(target, weights))
    except CkptError:
        return {}


def called(ref: str, name: str | None) -> str:
    """The name to record: as given, or the Hub id; a local path is nobody else's business."""
    if name:
        return name
    local = not ref.startswith(HUB_PREFIX) and expanded(ref).exists()
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
