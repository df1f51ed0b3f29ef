"""`ckpt-tools merge-draft`."""

from __future__ import annotations

from pathlib import Path

import click

from ..drafts.export import Options
from ..drafts.merge import merge_draft
from ..refs import resolve, resolve_headers
from .drafts import called, identity_of, merged, show, target_name, verifying
from .options import hf_config, talking, writing
from .output import Output
from .pushing import Publication, pushing


@click.command("merge-draft")
@click.argument("ref")
@click.argument("draft")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@hf_config
@target_name
@verifying
@pushing
@writing
@talking("merge-draft")
def command(
    out: Output,
    ref: str,
    draft: str,
    out_folder: Path,
    hf_config: str | None,
    target_name: str | None,
    verify: bool,
    dry_run: bool,
    overwrite: bool,
    publication: Publication,
) -> int:
    """Write the Hugging Face model REF with the MTP layers of DRAFT in it.

    DRAFT is anything that holds MTP layers: an extracted head, a speculators head, a Megatron iteration. Only shards with
    MTP tensors are written; the others are shared or linked. REF itself is never changed.
    """
    source = resolve(ref)
    options = Options(
        hf_config=resolve(hf_config, weights=False) if hf_config else None,
        target_name=called(ref, target_name),
        identity=identity_of(source),
        verify=merged if verify else None,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    with out.progress("writing") as starting:
        result, findings = merge_draft(source, resolve_headers(draft).path, out_folder, options, starting)
    sent = [] if dry_run else publication.send(out, out_folder)
    return out.finish(result, [*findings, *sent], lambda: show(out, result))
