"""`ckpt-tools export-draft`."""

from __future__ import annotations

from pathlib import Path

import click

from ..drafts.export import FORMATS, Options, export_draft
from ..drafts.formats.sglang import FORM as SGLANG
from ..drafts.formats.sources import NAMES
from ..refs import resolve, resolve_headers
from .drafts import called, identity_of, show, target_name, verified, verifying
from .options import hf_config, size, talking, writing
from .output import Output
from .pushing import Publication, pushing


@click.command("export-draft")
@click.argument("src")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="REF", help="The model that the head drafts for.")
@click.option(
    "--format", "to", type=click.Choice(FORMATS), default="sglang", show_default=True, help="What OUT is for."
)
@click.option(
    "--from",
    "form",
    type=click.Choice(NAMES),
    help="Who made SRC, where its config does not tell (SpecForge's norm_output means something of its own).",
)
@hf_config
@click.option(
    "--vocab-map",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Target ids of the draft vocabulary, where SRC holds no d2t: a list, or a d2t (torch.save, JSON, safetensors).",
)
@click.option(
    "--lm-head-from-target",
    is_flag=True,
    help="Where SRC has no lm_head: the target's rows, gathered by the draft vocabulary.",
)
@target_name
@click.option("--max-shard-size", type=size, metavar="SIZE", default="5GB", show_default=True, help="Largest file.")
@verifying
@pushing
@writing
@talking("export-draft")
def command(
    out: Output,
    src: str,
    out_folder: Path,
    target: str,
    to: str,
    form: str | None,
    hf_config: str | None,
    vocab_map: Path | None,
    lm_head_from_target: bool,
    target_name: str | None,
    max_shard_size: int,
    verify: bool,
    dry_run: bool,
    overwrite: bool,
    publication: Publication,
) -> int:
    """Write the draft head SRC for a server.

    SRC is an EAGLE or EAGLE-3 head of SafeAILab, SpecForge (also a training_state.pt), speculators, ModelOpt, AngelSlim or
    SGLang, an MTP head, or a Megatron iteration, of which the trained MTP layers are taken.
    """
    goal = resolve(target, weights=lm_head_from_target)
    options = Options(
        format=to,
        form=form,
        hf_config=resolve(hf_config, weights=False) if hf_config else None,
        vocab_map=vocab_map,
        lm_head_from_target=lm_head_from_target,
        target_name=called(target, target_name),
        max_shard_size=max_shard_size,
        identity=identity_of(goal),
        verify=verified if verify and to == SGLANG else None,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    with out.progress("writing") as starting:
        found = export_draft(resolve_headers(src).path, out_folder, goal, options, starting)
    sent = [] if dry_run else publication.send(out, out_folder, target)
    return out.finish(found.result, [*found.findings, *sent], lambda: show(out, found.result))
