"""`ckpt-tools preflight`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..errors import ExitCode
from ..launch.preflight import Preflight, preflight
from ..launch.releases import LATEST
from .options import talking
from .output import Output, human_bytes, short


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, or NAME for the value that this process has."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set in this environment", param_hint="--set")
        found[name] = value if equals else os.environ[name]
    return found


@click.command("preflight")
@click.argument("config", required=False, type=click.Path(path_type=Path), metavar="[CONFIG.yaml]")
@click.option("--target", metavar="REF", help="The Hugging Face model; by default the script's --hf-checkpoint.")
@click.option(
    "--torch-dist", metavar="DIR", help="The Megatron checkpoint; by default the script's --load or --ref-load."
)
@click.option("--draft", metavar="REF", help="A head of its own; by default the script's draft model path.")
@click.option("--script", metavar="LAUNCH.sh", help="A launch script, read without running it.")
@click.option("--args", "arguments", default="", metavar="FLAGS", help="Training flags, beside the script's or alone.")
@click.option("--server-args", default="", metavar="FLAGS", help="Flags of an SGLang server that is started apart.")
@click.option("--set", "pairs", multiple=True, metavar="NAME[=VALUE]", help="A variable of the script's environment.")
@click.option("--sglang-version", metavar="VERSION", help=f"The release that serves; {LATEST} if nothing says.")
@talking("preflight")
def command(
    out: Output,
    config: Path | None,
    target: str | None,
    torch_dist: str | None,
    draft: str | None,
    script: str | None,
    arguments: str,
    server_args: str,
    pairs: tuple[str, ...],
    sglang_version: str | None,
) -> int:
    """Check that script, checkpoints, draft head and server agree before a job takes a GPU.

    Reads metadata only: configs, indexes, .metadata; no weights, and nothing of the script is run. CONFIG.yaml may hold the
    same inputs (docs/preflight.md). Exit code 0: nothing speaks against it; 1: it would fail, or train something else.
    """
    outcome = preflight(
        config,
        target=target,
        torch_dist=torch_dist,
        draft=draft,
        script=script,
        args=arguments,
        server_args=server_args,
        variables=variables(pairs),
        sglang_version=sglang_version,
    )
    code = ExitCode.OK if outcome.sound else ExitCode.FAILED
    return out.finish(outcome.result, outcome.findings, lambda: _show(out, outcome.result), code)


def _show(out: Output, found: Preflight) -> None:
    model = f"{found.family or 'unknown'}, {'?' if found.mtp_layers is None else found.mtp_layers} MTP layers"
    rows = [
        ("target", found.target),
        ("torch-dist", found.torch_dist),
        ("draft", found.draft),
        ("script", found.script),
    ]
    out.pairs([*(row for row in rows if row[1]), ("model", model), ("server", f"SGLang {found.sglang}")])
    if memory := found.memory:
        shown = f"{human_bytes(memory.head_per_rank)} of {human_bytes(memory.head)} on each of {memory.ranks} ranks"
        cache = f"{human_bytes(memory.cache_per_token)} + {human_bytes(memory.head_cache_per_token)} for the head"
        out.pairs([("head weights", shown), ("KV cache", f"{cache}, per token and rank")])
    out.line()
    out.table(
        ("check", "outcome", "expected", "actual"),
        ((c.name, f"{c.outcome} {c.code}".strip(), short(c.expected), short(c.actual)) for c in found.checks),
    )
    out.line()
    out.line("ready" if found.fits else "not ready")
