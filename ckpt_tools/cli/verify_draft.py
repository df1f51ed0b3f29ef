"""`ckpt-tools verify-draft`."""

from __future__ import annotations

from pathlib import Path

import click

from ..drafts.checks.pair import Rules
from ..drafts.servers import SERVERS
from ..drafts.verify import Verification, verify_draft
from ..errors import ExitCode
from ..refs import resolve, resolve_headers
from .options import hf_config, talking
from .output import Output, human_bytes, short


@click.command("verify-draft")
@click.argument("draft")
@click.option("--target", required=True, metavar="REF", help="The model that the head is to accelerate.")
@click.option("--server", type=click.Choice(SERVERS), default=SERVERS[0], show_default=True, help="Who will load it.")
@click.option("--strict-target", is_flag=True, help="The target must be the recorded one, weights included.")
@click.option(
    "--allow-vocab-padding", is_flag=True, help="Accept vocabularies that differ in unused rows only (EAGLE-3)."
)
@click.option("--allow-prefix-vocab", is_flag=True, help="Accept a draft vocabulary of the first ids.")
@click.option(
    "--algorithm", type=click.Choice(("eagle", "eagle3", "nextn")), help="What the server will be started with."
)
@click.option("--steps", type=int, help="Speculative steps of the server; checked with --topk and --draft-tokens.")
@click.option("--topk", type=int, help="Branches per step.")
@click.option("--draft-tokens", type=int, help="Draft tokens per verification.")
@click.option("--token-map", type=click.Path(path_type=Path), help="Token map file of an EAGLE-1 head (target ids).")
@hf_config
@talking("verify-draft")
def command(
    out: Output,
    draft: str,
    target: str,
    server: str,
    strict_target: bool,
    allow_vocab_padding: bool,
    allow_prefix_vocab: bool,
    algorithm: str | None,
    steps: int | None,
    topk: int | None,
    draft_tokens: int | None,
    token_map: Path | None,
    hf_config: str | None,
) -> int:
    """Check that the head DRAFT fits its target and that the server will load it.

    Of a Hub id only headers and small tensors are fetched, and no weights of the target.
    """
    fetched = resolve_headers(draft)
    rules = Rules(
        server=server,
        strict_target=strict_target,
        allow_vocab_padding=allow_vocab_padding,
        allow_prefix_vocab=allow_prefix_vocab,
        algorithm=algorithm or "",
        steps=steps,
        topk=topk,
        draft_tokens=draft_tokens,
        token_map=token_map,
        headers_only=not fetched.complete,
    )
    config = resolve(hf_config, weights=False) if hf_config else None
    outcome = verify_draft(fetched.path, resolve(target, weights=False), rules, config)
    outcome.result.draft = outcome.result.draft if fetched.complete else draft
    code = ExitCode.OK if outcome.sound else ExitCode.FAILED
    return out.finish(outcome.result, outcome.findings, lambda: show(out, outcome.result), code)


def show(out: Output, found: Verification) -> None:
    """The table of checks."""
    out.pairs(
        [
            (
                "draft",
                f"{found.draft} ({found.kind}, {found.form}, {found.tensors} tensors, {human_bytes(found.nbytes)})",
            ),
            ("target", found.target),
            ("server", f"{found.server}" + (f", {found.server_class}" if found.server_class else "")),
            *(
                [("aux layers", f"inputs of {found.aux_boundaries}, outputs of {found.aux_ids}")]
                if found.aux_ids
                else []
            ),
        ]
    )
    out.line()
    out.table(
        ("check", "outcome", "expected", "actual"),
        ((c.name, f"{c.outcome} {c.code}".strip(), short(c.expected), short(c.actual)) for c in found.checks),
    )
    out.line()
    out.line("fits" if found.fits else "does not fit")
