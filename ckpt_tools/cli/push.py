"""`ckpt-tools push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import talking
from .output import Output, human_bytes

if TYPE_CHECKING:
    from ..hub.sending import Pushed

RELATIONS = ("adapter", "finetune", "merge", "quantized")  # hub.card.RELATIONS, which is not imported for --help


@click.command("push")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repository", metavar="ORG/NAME")
@click.option("--target", default="", metavar="REF", help="The model that a head is for; its manifest's if not given.")
@click.option("--base-model", default="", metavar="ORG/NAME", help="What others call the target, if --target is local.")
@click.option("--relation", type=click.Choice(RELATIONS), help="To the base model: adapter for heads if not given.")
@click.option("--license", default="", metavar="ID", help="Licence id for the card, where the folder states none.")
@click.option(
    "--smoke", type=click.Path(path_type=Path), metavar="REPORT", help="Output of `smoke --json`, for the card."
)
@click.option("--private", is_flag=True, help="Make the repository private, if it does not exist.")
@click.option("--create-pr", is_flag=True, help="Open a pull request against the main branch.")
@click.option("--revision", default="", metavar="R", help="Branch, made if absent, or refs/pr/N; main if not given.")
@click.option("--message", default="", help="Of the commit.")
@click.option(
    "--replace-weights", is_flag=True, help="Remove weights on the Hub that are not in DIR, in the same commit."
)
@click.option("--dry-run", is_flag=True, help="Check everything, list files and bytes, send nothing.")
@talking("push")
def command(
    out: Output,
    folder: Path,
    repository: str,
    target: str,
    base_model: str,
    relation: str | None,
    license: str,
    smoke: Path | None,
    private: bool,
    create_pr: bool,
    revision: str,
    message: str,
    replace_weights: bool,
    dry_run: bool,
) -> int:
    """Publish DIR, a head or a Hugging Face model, as ORG/NAME on the Hub, with a model card.

    First it is checked: integrity, a head against its target, a licence, no pickles, no secrets, no paths of this machine.
    Everything arrives in one commit. Run it again after a failure: only what is missing is sent. The token is huggingface_hub's
    own (`hf auth login` or HF_TOKEN).
    """
    from ..hub.options import Options
    from ..hub.push import push

    options = Options(
        target=target,
        base_model=base_model,
        relation=relation or "",
        license=license,
        smoke=smoke,
        private=private,
        create_pr=create_pr,
        revision=revision,
        message=message,
        replace_weights=replace_weights,
        dry_run=dry_run,
    )
    with out.progress("uploading") as starting:
        pushed, findings = push(folder, repository, options, starting)
    return out.finish(pushed, findings, lambda: show(out, pushed))


def show(out: Output, pushed: Pushed) -> None:
    """What was sent, file by file."""
    sent = sum(file.state in ("new", "changed") for file in pushed.files)
    here = sum(file.state != "removed" for file in pushed.files)
    verb = "would send" if pushed.dry_run else "sent"
    rows = [
        ("repository", f"{pushed.repository}@{pushed.revision}"),
        ("what", f"{pushed.what}" + (f" ({pushed.kind})" if pushed.kind else "")),
        ("base model", pushed.base_model + (f"@{pushed.base_commit}" if pushed.base_commit else "")),
        (verb, f"{sent} of {here} files, {human_bytes(pushed.nbytes)}"),
        ("commit", pushed.url or pushed.commit),
        ("pull request", pushed.pull_request),
    ]
    out.pairs((label, value) for label, value in rows if value)
    out.line()
    table = [(file.path, file.state, human_bytes(file.nbytes)) for file in pushed.files]
    out.table(("file", "state", "bytes"), table, right=(2,))
