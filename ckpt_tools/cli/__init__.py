"""The command line: flat verbs, each loaded only when it is called."""

from __future__ import annotations

import gc
import importlib
import sys

import click

from .. import __version__
from .help import dressed, sections

COMMANDS: dict[str, tuple[str, str]] = {
    "convert": (".convert", "Convert between Hugging Face and torch-dist, MTP layers included."),
    "inspect": (".inspect", "Show what a checkpoint holds and everything that is wrong with it."),
    "compare": (".compare", "Compare two checkpoints tensor by tensor, across formats and shardings."),
    "verify-draft": (".verify_draft", "Check that a head fits its target and that the server will load it."),
    "extract-draft": (".extract_draft", "Take the MTP layers of a model out as a draft of their own."),
    "merge-draft": (".merge_draft", "Put MTP layers into a Hugging Face model."),
    "export-draft": (".export_draft", "Write a draft head of any producer for SGLang or speculators."),
    "smoke": (".smoke", "Decode with a head and verify: lossless, how many accepted, how fast."),
    "drift": (".drift", "Measure what of a head's acceptance survives that its target moved."),
    "tune-draft": (".tune_draft", "Tune a draft head on what its target itself says."),
    "registry": (".registry", "Keep heads with their targets: add, list, show, check, resolve, remove."),
    "preflight": (".preflight", "Check script, checkpoints, head and server before a job takes a GPU."),
    "serve-args": (".serve_args", "Print the flags with which a server speculates for a target."),
    "push": (".push", "Publish a head or a model on the Hub, validated, with a model card."),
    "families": (".families", "Print the support matrix."),
    "megatron-args": (".megatron_args", "Print the Megatron flags that a model needs."),
}

# A plan of a large model is a million small objects without cycles: the collector would walk over them again and again.
PLANNED = 500_000


class LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[name][0], __package__).command
        assert isinstance(command, click.Command)
        return dressed(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))  # one column for all sections
        for heading, names in sections(COMMANDS).items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), COMMANDS[name][1]) for name in names])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="ckpt-tools")
def cli() -> None:
    """Checkpoints between Hugging Face, Megatron and SGLang, with their draft heads.

    Tab completion: eval "$(_CKPT_TOOLS_COMPLETE=bash_source ckpt-tools)", also zsh_source and fish_source.
    """


def main() -> None:
    """Entry point of the console script."""
    from .boundary import run

    gc.set_threshold(PLANNED, 50, 100)
    sys.exit(run(cli, sys.argv[1:]))
