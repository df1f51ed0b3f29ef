#!/usr/bin/env python3
"""Write docs/commands.md: every command with its arguments and options, from the command line itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ckpt_tools.cli import COMMANDS, cli
from ckpt_tools.cli.help import heading, sections

OUT = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Written by `scripts/make_reference.py`; do not edit. Every command also takes `-h`. Exit codes: 0 fine, 1 findings or failed
work, 2 usage, 3 input not found, 4 not authorised, 5 output exists, 130 interrupted. `--json` prints one object that is valid
against `schemas/<command>.json`, also on failure.
"""

PLACEHOLDERS = {"integer": "N", "integer range": "N", "float": "X", "float range": "X", "path": "PATH"}


def kind(option: click.Option) -> str:
    """What stands after an option: nothing, a choice, or a placeholder."""
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return {"integer": "N", "integer range": "N", "float": "X", "float range": "X", "path": "PATH"}.get(
        option.type.name, "TEXT"
    )


def row(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    spelled = ", ".join(f"`{name}{' ' + kind(option) if kind(option) else ''}`" for name in sorted(names, key=len))
    said = [" ".join((option.help or "").split())]
    if option.required:
        said.append("Required.")
    elif isinstance(option.show_default, str):
        said.append(f"Default: {option.show_default}.")
    elif option.show_default and option.default not in (None, ""):
        default = option.opts[0].lstrip("-") if option.secondary_opts and option.default else option.default
        said.append(f"Default: {default}.")
    return f"| {spelled.replace('|', chr(92) + '|')} | {' '.join(said).replace('|', chr(92) + '|')} |"


def usage(name: str, command: click.Command) -> str:
    words = ["ckpt-tools", name]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            shown = (parameter.metavar or (parameter.name or "").upper()).strip("[]")
            words.append(shown if parameter.required else f"[{shown}]")
    return " ".join([*words, "[OPTIONS]"])


def described(name: str, command: click.Command, level: str) -> Iterator[str]:
    """A command: usage, help, a table of options, each with its heading where it is a dangerous one."""
    yield f"{level} {name}"
    yield ""
    if isinstance(command, click.Group):
        yield paragraph(command)
        yield ""
        for inner, each in command.commands.items():
            yield from described(f"{name} {inner}", each, level + "#")
        return
    yield from ("```", usage(name, command), "```", paragraph(command), "")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    for title in dict.fromkeys(heading(option) for option in options):
        yield f"| {title} | |"
        yield "| --- | --- |"
        yield from (row(option) for option in options if heading(option) == title)
        yield ""


def paragraph(command: click.Command) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def rendered() -> str:
    """The whole page."""
    lines = [HEAD]
    context = click.Context(cli)
    for title, names in sections(COMMANDS).items():
        lines += [f"## {title}", ""]
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            lines += described(name, command, "###")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Command line; returns the exit status."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    OUT.write_text(rendered(), encoding="utf-8")
    print(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
