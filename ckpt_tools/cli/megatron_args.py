"""`ckpt-tools megatron-args`."""

from __future__ import annotations

import click

from ..arguments import ModelArguments, megatron_arguments
from ..refs import resolve
from .options import talking
from .output import Output


@click.command("megatron-args")
@click.argument("ref")
@click.option(
    "--for",
    "trainer",
    type=click.Choice(["slime", "megatron"]),
    default="slime",
    show_default=True,
    help="slime takes its layer plugins where the family has one.",
)
@talking("megatron-args")
def command(out: Output, ref: str, trainer: str) -> int:
    """Print the Megatron (and slime) model flags that REF needs, one per line, --mtp-num-layers included.

    REF is a Hugging Face folder, a config.json, a Hub id, or a torch-dist directory that carries its config.
    """
    found, findings = megatron_arguments(resolve(ref, weights=False), for_slime=trainer == "slime")
    return out.finish(found, findings, lambda: _show(out, found))


def _show(out: Output, found: ModelArguments) -> None:
    for flag in found.flags:
        out.line(flag)
