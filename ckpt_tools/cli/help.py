"""How help is grouped, and what a shell completes: one place for every command, those of groups included."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

GROUPS: dict[str, tuple[str, ...]] = {
    "Checkpoints": ("convert", "inspect", "compare"),
    "Draft heads": (
        "verify-draft",
        "extract-draft",
        "merge-draft",
        "export-draft",
        "registry",
        "smoke",
        "tune-draft",
        "drift",
    ),
    "In the pipeline": ("preflight", "megatron-args", "serve-args", "push"),
}
OTHER = "Other"

OPTIONS, TALKING, DANGEROUS = (
    "Options",
    "Output",
    "Dangerous options (what they replace, drop or accept is not asked again)",
)
TALK = ("as_json", "quiet", "verbose")
# Parameters whose use can lose or let pass something. A pair such as --verify/--no-verify is dangerous by its second half.
RISKY = ("overwrite", "rest", "duplicates", "write_index", "with_paths", "replace_weights")
ACCEPTS = "allow_"
REFS = ("ref", "src", "a", "b", "draft", "target", "target_a", "target_b", "torch_dist", "script", "hf_config", "dir")


class Ref(click.types.StringParamType):
    """A local path, `org/name[@revision]` or `hf://...`: a shell completes the path."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def sections(commands: Iterable[str]) -> dict[str, list[str]]:
    """Commands by heading, in the order of GROUPS; those of no group come last."""
    every = list(commands)
    found = {heading: [name for name in names if name in every] for heading, names in GROUPS.items()}
    placed = {name for names in found.values() for name in names}
    found[OTHER] = [name for name in every if name not in placed]
    return {heading: names for heading, names in found.items() if names}


def heading(parameter: click.Parameter) -> str:
    """Under which heading an option stands."""
    if parameter.name in TALK or "--help" in parameter.opts:
        return TALKING
    risky = parameter.name in RISKY or (parameter.name or "").startswith(ACCEPTS) or bool(parameter.secondary_opts)
    return DANGEROUS if risky else OPTIONS


def options_by_heading(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """(option, help) of a command by heading; dangerous ones stand by themselves."""
    found: dict[str, list[tuple[str, str]]] = {OPTIONS: [], DANGEROUS: [], TALKING: []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if record is not None:
            found[heading(parameter)].append(record)
    return {name: records for name, records in found.items() if records}


class Grouped(click.Command):
    """A command whose options are grouped."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, records in options_by_heading(self, ctx).items():
            with formatter.section(name):
                formatter.write_dl(records)


def dressed(command: click.Command) -> click.Command:
    """The command with grouped options and path completion, its subcommands as well."""
    for parameter in command.params:
        if parameter.name in REFS and parameter.type is click.STRING:
            parameter.type = Ref()
    if isinstance(command, click.Group):
        command.commands = {name: dressed(each) for name, each in command.commands.items()}
    elif type(command) is click.Command:
        command.__class__ = Grouped
    return command
