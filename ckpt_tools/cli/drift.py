"""`ckpt-tools drift`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..refs import resolve
from .options import hf_config, talking
from .output import Output
from .tune_draft import acceptance

if TYPE_CHECKING:
    from ..tune.drift import Drift

COUNT = click.IntRange(min=1)


@click.command("drift")
@click.argument("target_a")
@click.argument("target_b")
@click.argument("draft")
@click.option("--prompts", default="builtin", show_default=True, metavar="FILE|builtin", help="What is decoded.")
@click.option("--first", type=COUNT, metavar="N", help="Only the first N prompts.")
@click.option("--steps", type=COUNT, default=3, show_default=True, help="Draft tokens per verification.")
@click.option("--max-new-tokens", type=COUNT, default=64, show_default=True, help="Longest text.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where it runs.")
@click.option(
    "--dtype", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True, help="Arithmetic."
)
@hf_config
@talking("drift")
def command(
    out: Output,
    target_a: str,
    target_b: str,
    draft: str,
    prompts: str,
    first: int | None,
    steps: int,
    max_new_tokens: int,
    device: str,
    dtype: str,
    hf_config: str | None,
) -> int:
    """Measure how much of DRAFT's acceptance survives that its target moved from TARGET_A to TARGET_B.

    Both decode the same prompts greedily, with real verification. The advice is to keep the head, to tune it
    (`tune-draft`), or to take the MTP layers out of TARGET_B (`extract-draft`).
    """
    from ..tune.drift import Options, drift

    options = Options(prompts, first, max_new_tokens, steps, device, dtype)
    config = resolve(hf_config, weights=False) if hf_config else None
    found = drift(resolve(target_a), resolve(target_b), resolve(draft), options, config)
    return out.finish(found.result, found.findings, lambda: show(out, found.result))


def show(out: Output, result: Drift) -> None:
    d = result.divergence
    rows = [
        ("head", f"{result.draft} ({result.kind})"),
        ("on A", acceptance(result.a)),
        ("on B", acceptance(result.b)),
        *([("B's own", acceptance(result.own))] if result.own else []),
        ("survived", f"{result.survived:.3f} +- {result.error:.3f} of the accepted drafts"),
        ("targets", f"KL(A|B) {d.a_from_b:.4f}, KL(B|A) {d.b_from_a:.4f} nats per token; {d.agreement:.1%} agree"),
        ("advice", f"{result.advice}: {result.reason}"),
    ]
    out.pairs(rows)
