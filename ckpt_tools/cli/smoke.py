"""`ckpt-tools smoke`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from ..errors import ExitCode, Finding, UsageProblem, error
from ..refs import resolve
from ..report import Outcome
from .options import talking
from .output import Output

METHODS = ("exact", "target-only")  # speculate.verification.SAMPLERS, which is not imported for --help
DTYPES = ("float32", "bfloat16", "float16")


@click.command("smoke")
@click.argument("target")
@click.argument("draft", required=False)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Draft steps per verification.")
@click.option("--topk", type=click.IntRange(min=1), default=1, help="Drafts per step; above 1 they make a tree (1).")
@click.option("--draft-tokens", type=click.IntRange(min=2), metavar="N", help="Size of the tree, its root included.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Longest text.")
@click.option("--prompts", default="builtin", show_default=True, metavar="FILE|builtin", help="What is decoded.")
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="Only the first N prompts.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where it runs.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Arithmetic.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="0 is greedy (default).")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Keep the K likeliest tokens.")
@click.option("--top-p", type=click.FloatRange(min=0, max=1, min_open=True), default=1.0, help="Keep that much mass.")
@click.option(
    "--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True, help="How samples are verified."
)
@click.option("--seed", type=int, default=0, help="Of sampling.")
@click.option(
    "--depths", type=click.IntRange(min=0), default=4, show_default=True, help="Time 1 to N steps; 0: no timing."
)
@click.option("--baseline", type=click.Path(path_type=Path), metavar="REPORT", help="An earlier --json output.")
@click.option("--report", type=click.Path(path_type=Path), metavar="OUT.html", help="Write one self-contained page.")
@click.option("--register", metavar="NAME", help="Record the accept length in this head's registry entry.")
@click.option("--registry", metavar="REF", help="Where that is, as for `registry`.")
@click.option("--server", metavar="URL", help="Measure a running SGLang server instead of decoding here.")
@talking("smoke")
def command(
    out: Output,
    target: str,
    draft: str | None,
    steps: int,
    topk: int,
    draft_tokens: int | None,
    max_new_tokens: int,
    prompts: str,
    first: int | None,
    device: str,
    dtype: str,
    temperature: float,
    top_k: int,
    top_p: float,
    method: str,
    seed: int,
    depths: int,
    baseline: Path | None,
    report: Path | None,
    register: str | None,
    registry: str | None,
    server: str | None,
) -> int:
    """Run speculative decoding of TARGET with the head DRAFT, with real verification.

    Is the text what the target alone would have produced, how many drafts are accepted, is it faster, does anything look
    random? Without DRAFT the target's own MTP layers are measured.
    """
    from ..speculate.baseline import against, read_report
    from ..speculate.results import SmokeReport
    from ..speculate.smoke import Options, smoke
    from ..speculate.verification import Sampling

    if register and topk > 1:
        raise error(
            UsageProblem,
            "register-tree",
            "the registry records the accept length of a chain",
            expected="--topk 1 with --register",
            actual=f"--topk {topk}",
            fix="measure a chain for the registry",
        )
    before = read_report(baseline) if baseline else None
    sampling = Sampling(temperature, top_k, top_p, method, seed)
    options = Options(
        steps,
        max_new_tokens,
        prompts,
        first,
        device,
        dtype,
        sampling,
        depths,
        topk=topk,
        num_draft_tokens=draft_tokens,
    )
    folder = resolve(target)
    head = resolve(draft) if draft else folder
    outcome: Outcome[SmokeReport]
    if server:
        from ..speculate.server import smoke_server

        outcome = smoke_server(server, folder, head, options, out.hint)
    else:
        outcome = smoke(folder, head, options, out.hint)
    result, findings = outcome.result, list(outcome.findings)
    result = replace(result, target=target, draft=draft or target)
    if before is not None and baseline is not None:
        findings += against(result, before, baseline)
    if report is not None:
        from ..speculate.page import write_page

        write_page(report, result, findings)
        out.hint(f"wrote {report}")
    if register:
        _register(register, registry, result.acceptance.accept_length, steps)
    sound = not any(finding.severity == "error" for finding in findings)
    return out.finish(result, findings, lambda: show(out, result, findings), ExitCode.OK if sound else ExitCode.FAILED)


def _register(name: str, registry: str | None, accept_length: float, steps: int) -> None:
    from ..registry.manifest import Measured
    from ..registry.store import amend, opened

    amend(opened(registry, os.environ), name, measured=Measured(accept_length=accept_length, steps=steps))


def show(out: Output, report: object, findings: Sequence[Finding]) -> None:
    from ..speculate.page import facts
    from ..speculate.results import SmokeReport

    assert isinstance(report, SmokeReport)
    out.pairs(facts(report))
    if report.timing:
        out.line()
        out.table(
            ("steps", "accept length", "tokens/s", "predicted speed-up", "measured", "error"),
            (
                (
                    str(depth.steps),
                    f"{depth.accept_length:.3f}",
                    f"{depth.tokens_per_second:.1f}",
                    f"{depth.predicted:.2f}",
                    f"{depth.measured:.2f}",
                    f"{depth.error:+.1%}",
                )
                for depth in report.timing.depths
            ),
            right=(0, 1, 2, 3, 4, 5),
        )
