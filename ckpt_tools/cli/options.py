"""Options that commands share, written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from .output import Output

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def size(text: str) -> int:
    """Bytes with an optional unit: 5GB, 512MiB, 1000."""
    cleaned = text.strip().upper()
    digits = cleaned.rstrip("KMGTIB ")
    try:
        count = int(float(digits) * UNITS[cleaned[len(digits) :].strip()])
    except (ValueError, OverflowError, KeyError):
        count = 0
    if count < 1:
        raise click.BadParameter(f"{text!r} is not a size such as 5GB or 512MiB")
    return count


def _after(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def talking(name: str) -> Callable[..., Any]:
    """--json, --quiet and -v; the command receives an `Output` as its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(as_json: bool, quiet: bool, verbose: bool, **values: Any) -> Any:
            return function(Output(name, as_json, quiet, verbose), **values)

        decorated: Callable[..., Any] = _after(
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object (see schemas/)."),
            click.option("-q", "--quiet", is_flag=True, help="Only the result and errors."),
            click.option("-v", "--verbose", is_flag=True, help="Notes as well as warnings."),
        )(inner)
        return decorated

    return decorate


writing = _after(
    click.option("--dry-run", is_flag=True, help="Plan and check everything, write nothing."),
    click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint at the destination."),
)

hf_config = click.option(
    "--hf-config",
    metavar="REF",
    help="Folder (or config.json) of the original model; a torch-dist directory written by `convert` carries its own.",
)
