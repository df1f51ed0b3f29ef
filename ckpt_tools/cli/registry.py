"""`ckpt-tools registry`: one group of verbs over a folder or Hub repository of manifests."""

from __future__ import annotations

import os
from typing import Any

import click

from ..drafts.checks.pair import Rules
from ..drafts.servers import SERVERS
from ..errors import ExitCode, Finding
from ..refs import resolve
from ..registry.base import Place
from ..registry.heads import Addition, Heads, Listed, add, check, resolve_heads
from ..registry.manifest import Measured
from ..registry.store import VARIABLE, get, opened, read_all, remove
from .options import talking
from .output import Output, human_bytes

where = click.option(
    "--registry",
    "place",
    metavar="REF",
    help="The registry: a folder, or a Hub repository as org/name[@branch] or hf://... (a new folder of two parts is ./a/b); "
    f"{VARIABLE} or the user's data directory if not given.",
    callback=lambda context, option, ref: opened(ref, os.environ),
)


@click.group("registry")
def command() -> None:
    """Keep heads with their targets: verified when they are added, checked and found again later."""


def _finish(out: Output, place: Place, action: str, heads: list[Listed], findings: list[Finding] | None = None) -> int:
    found = findings or []
    code = ExitCode.FAILED if any(finding.severity == "error" for finding in found) else ExitCode.OK
    result = Heads(place.where, action, heads)
    return out.finish(result, found, lambda: _show(out, result), code)


@command.command("add")
@click.argument("draft")
@click.option("--target", required=True, metavar="REF", help="The model that the head is for.")
@click.option("--name", required=True, help="What the registry calls it.")
@click.option("--server", type=click.Choice(SERVERS), default=SERVERS[0], show_default=True, help="Who will load it.")
@click.option("--accept-length", type=click.FloatRange(min=1), help="Measured tokens per verification.")
@click.option("--steps", type=click.IntRange(min=1), help="Speculative steps of that measurement.")
@click.option("--allow-vocab-padding", is_flag=True, help="As for verify-draft.")
@click.option("--allow-prefix-vocab", is_flag=True, help="As for verify-draft.")
@click.option("--overwrite", is_flag=True, help="Replace an entry of this name.")
@where
@talking("registry")
def add_command(
    out: Output,
    draft: str,
    target: str,
    name: str,
    server: str,
    accept_length: float | None,
    steps: int | None,
    allow_vocab_padding: bool,
    allow_prefix_vocab: bool,
    overwrite: bool,
    place: Place,
) -> int:
    """Verify DRAFT against its target and record it with the target's identity and the hash of every file."""
    rules = Rules(server=server, allow_vocab_padding=allow_vocab_padding, allow_prefix_vocab=allow_prefix_vocab)
    measured = Measured(accept_length=accept_length, steps=steps) if accept_length else None
    entry, findings = add(place, Addition(name, draft, target, rules, measured, overwrite))
    return _finish(out, place, "add", [Listed(entry)], findings)


@command.command("list")
@where
@talking("registry")
def list_command(out: Output, place: Place) -> int:
    """List every head."""
    entries, findings = read_all(place)
    return _finish(out, place, "list", [Listed(entry) for entry in entries], findings)


@command.command("show")
@click.argument("name")
@where
@talking("registry")
def show_command(out: Output, name: str, place: Place) -> int:
    """Show everything that is recorded of one head."""
    return _finish(out, place, "show", [Listed(get(place, name))])


@command.command("check")
@click.argument("name", required=False)
@where
@talking("registry")
def check_command(out: Output, name: str | None, place: Place) -> int:
    """Repeat everything for one head or all: hashes of files, identity of the target, verification."""
    entries, findings = ([get(place, name)], []) if name else read_all(place)
    return _finish(out, place, "check", [Listed(entry) for entry in entries], [*findings, *check(entries)])


@command.command("resolve")
@click.argument("target")
@where
@talking("registry")
def resolve_command(out: Output, target: str, place: Place) -> int:
    """List the heads that fit TARGET, those of its very weights first, the best measured first."""
    heads, findings = resolve_heads(place, resolve(target, weights=False))
    return _finish(out, place, "resolve", heads, findings)


@command.command("remove")
@click.argument("name")
@where
@talking("registry")
def remove_command(out: Output, name: str, place: Place) -> int:
    """Forget a head; its files stay where they are."""
    return _finish(out, place, "remove", [Listed(remove(place, name))])


def _show(out: Output, found: Heads) -> None:
    if found.action == "show":
        out.pairs(_facts(found.heads[0].entry.model_dump()))
        return
    if found.action in ("add", "remove"):
        out.line(f"{found.action} {found.heads[0].entry.name} ({found.registry})")
        return
    out.table(
        ("name", "kind", "target", "accept length", "weights", "location"),
        (
            (
                head.entry.name,
                head.entry.kind,
                head.entry.target.ref or head.entry.target_location,
                f"{head.entry.measured.accept_length:.3f}" if head.entry.measured else "",
                head.weights,
                head.entry.location,
            )
            for head in found.heads
        ),
        right=(3,),
    )


def _facts(entry: dict[str, Any]) -> list[tuple[str, str]]:
    files = [
        (f"file {name}", f"{human_bytes(f['nbytes'])}, sha256 {f['sha256']}") for name, f in entry.pop("files").items()
    ]
    identity = entry["target"].pop("identity")
    hashes = [(name, str(value)) for name, value in identity.items() if name != "arch" and value]
    flat = [
        (f"{key} {inner}" if inner else key, str(value))
        for key, part in entry.items()
        for inner, value in (part.items() if isinstance(part, dict) else [("", part)])
        if value not in (None, "", [])
    ]
    return [*flat, *hashes, *files]
