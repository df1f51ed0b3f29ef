"""`ckpt-tools extract-draft`."""

from __future__ import annotations

from pathlib import Path

import click

from ..drafts.export import Options
from ..drafts.mtp import extract_draft
from ..refs import resolve, resolve_headers
from .drafts import called, identity_of, show, target_name, verified, verifying
from .options import hf_config, size, talking, writing
from .output import Output
from .pushing import Publication, pushing


@click.command("extract-draft")
@click.argument("ref")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@hf_config
@click.option(
    "--mtp-layers",
    type=click.IntRange(min=1),
    help="How many MTP layers there are, where config and tensors disagree.",
)
@target_name
@click.option("--max-shard-size", type=size, metavar="SIZE", default="5GB", show_default=True, help="Largest file.")
@verifying
@pushing
@writing
@talking("extract-draft")
def command(
    out: Output,
    ref: str,
    out_folder: Path,
    hf_config: str | None,
    mtp_layers: int | None,
    target_name: str | None,
    max_shard_size: int,
    verify: bool,
    dry_run: bool,
    overwrite: bool,
    publication: Publication,
) -> int:
    """Write the MTP layers of REF as a folder that SGLang serves as a draft.

    REF is a Hugging Face folder, a Hub id or a torch-dist directory. Of its weights only the head's bytes are read.
    """
    source = resolve_headers(ref)
    options = Options(
        hf_config=resolve(hf_config, weights=False) if hf_config else None,
        target_name=called(ref, target_name),
        max_shard_size=max_shard_size,
        identity=identity_of(source.path, weights=source.complete),
        verify=verified if verify else None,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    with out.progress("writing") as starting:
        result, findings = extract_draft(source.path, out_folder, options, mtp_layers, starting)
    result.source = result.source if source.complete else ref
    sent = [] if dry_run else publication.send(out, out_folder, hf_config or ref)
    return out.finish(result, [*findings, *sent], lambda: show(out, result))
