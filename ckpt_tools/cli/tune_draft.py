"""`ckpt-tools tune-draft`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CkptError, ExitCode
from ..tune.settings import Settings
from .drafts import target_name, verifying
from .options import hf_config, talking, writing
from .output import Output
from .pushing import Publication, pushing
from .registry import where

if TYPE_CHECKING:
    from ..registry.base import Place
    from ..registry.manifest import Measured
    from ..speculate.results import Acceptance
    from ..tune.run import TunedHead
    from ..tune.trainer import Round

DEFAULT = Settings()
FILE = click.Path(path_type=Path)
COUNT, NATURAL, POSITIVE = click.IntRange(min=1), click.IntRange(min=0), click.FloatRange(min=0, min_open=True)


def number(name: str, default: float, kind: Any, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@click.command("tune-draft")
@click.argument("target")
@click.argument("draft")
@click.argument("out_folder", metavar="OUT", type=FILE)
@click.option("--prompts", metavar="FILE", help="The target continues them, drafted by the head; as for smoke.")
@click.option("--samples", type=FILE, help="JSON lines of prompts with responses, instead of generating.")
@number("--held-out", 0, NATURAL, "The last N prompts are only measured, before and after.")
@click.option("--held-out-prompts", metavar="FILE|builtin", help="More prompts that are only measured.")
@number("--rounds", DEFAULT.rounds, COUNT, "Rounds of generating and learning.")
@number("--prompts-per-round", DEFAULT.prompts, COUNT, "Prompts of a round and process.")
@number("--max-new-tokens", DEFAULT.new_tokens, COUNT, "Tokens of a continuation.")
@number("--updates", DEFAULT.updates, COUNT, "Optimiser steps of a round.")
@number("--batch-size", DEFAULT.batch, COUNT, "Samples of an optimiser step and process.")
@number("--replay", DEFAULT.replay, COUNT, "Rounds whose samples are learned from.")
@number("--steps", DEFAULT.steps, COUNT, "Drafts per verification; as many steps of the chain are trained.")
@number("--decay", DEFAULT.decay, POSITIVE, "Step s of the chain weighs decay ** s.")
@number("--learning-rate", DEFAULT.learning_rate, POSITIVE, "AdamW's, after the warm-up.")
@number("--temperature", DEFAULT.temperature, click.FloatRange(min=0), "Of generation; 0 is greedy.")
@number("--seed", DEFAULT.seed, NATURAL, "Fixes prompts, samples and batches.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="By default CUDA where there is any.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="By default float32 on a CPU, else bfloat16.")
@click.option("--state", type=FILE, help="Folder of checkpoints; OUT.tuning if not given.")
@number("--save-every", DEFAULT.save_every, NATURAL, "Rounds between checkpoints; 0 saves none.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint.")
@click.option(
    "--register",
    metavar="NAME",
    help="Add the tuned head to the registry under this name; --overwrite replaces that of OUT.",
)
@where
@hf_config
@target_name
@verifying
@pushing
@writing
@talking("tune-draft")
def command(
    out: Output,
    target: str,
    draft: str,
    out_folder: Path,
    prompts: str | None,
    samples: Path | None,
    held_out: int,
    held_out_prompts: str | None,
    device: str | None,
    dtype: str | None,
    state: Path | None,
    resume: bool,
    register: str | None,
    place: Place,
    hf_config: str | None,
    target_name: str | None,
    verify: bool,
    dry_run: bool,
    overwrite: bool,
    publication: Publication,
    prompts_per_round: int,
    max_new_tokens: int,
    batch_size: int,
    **settings: Any,
) -> int:
    """Tune the head DRAFT on what TARGET itself says, and write it to OUT.

    DRAFT is an MTP, EAGLE or EAGLE-3 head of any format. TARGET is never changed. Start it with torchrun to use several
    processes; each generates and learns from prompts of its own.
    """
    from ..drafts.export import Options as Writing
    from ..refs import resolve
    from ..registry.heads import Addition, add
    from ..registry.store import check_name
    from ..tune.run import Job, Reading, tune
    from .drafts import called, identity_of, verified

    if (prompts is None) == (samples is None):
        raise click.UsageError("give one of --prompts and --samples")
    goal = resolve(target)
    job = Job(
        target=goal,
        draft=resolve(draft),
        out=out_folder,
        reading=Reading(prompts or "", samples, held_out, held_out_prompts or ""),
        settings=Settings(prompts=prompts_per_round, new_tokens=max_new_tokens, batch=batch_size, **settings),
        writing=Writing(
            target_name=called(target, target_name),
            identity=identity_of(goal),
            verify=verified if verify else None,
            dry_run=dry_run,
            overwrite=overwrite,
        ),
        hf_config=resolve(hf_config, weights=False) if hf_config else None,
        state=state or Path(f"{out_folder.absolute()}.tuning"),
        resume=resume,
        device=device or "",
        dtype=dtype or "",
    )
    addition = Addition(register or "", str(out_folder.resolve()), target, overwrite=overwrite, elsewhere=False)
    if register and leads():
        check_name(place, addition.naming)
    found = tune(job, lambda done: out.hint(said(done, job.settings.rounds)) if leads() else None)
    if not leads():
        return 0
    code = ExitCode.OK
    if register and not dry_run:
        measured = measured_of(found.result, job.settings.steps)
        try:
            found.findings.extend(add(place, replace(addition, measured=measured)).findings)
            found.result.registered = register
        except CkptError as problem:  # the head is there, and is said and pushed all the same
            found.findings.extend(problem.findings)
            code = problem.exit_code
    sent = [] if dry_run else publication.send(out, out_folder, target)
    return out.finish(found.result, [*found.findings, *sent], lambda: show(out, found.result), code)


def leads() -> bool:
    """Whether this is torchrun's first process, which alone writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def measured_of(result: TunedHead, steps: int) -> Measured | None:
    from ..registry.manifest import Measured

    return Measured(accept_length=result.after.accept_length, steps=steps) if result.after else None


def said(done: Round, rounds: int) -> str:
    """One line of progress."""
    length = "" if done.accept_length is None else f"accept length {done.accept_length:.3f}, "
    losses, right = (" ".join(f"{x:.3f}" for x in values) for values in (done.losses, done.right))
    return (
        f"round {done.number}/{rounds}: {length}loss {losses}, right {right} "
        f"({done.tokens} tokens, {done.updates} updates, {done.seconds:.0f} s)"
    )


def show(out: Output, result: TunedHead) -> None:
    rows = [
        ("would tune" if result.dry_run else "tuned", f"{result.draft} ({result.kind}) for {result.target}"),
    ]
    if not result.dry_run:
        rows += [
            ("on", f"{result.device}, {result.processes} processes, {result.trainable:,} parameters"),
            ("rounds", f"{len(result.rounds)}, {sum(done.tokens for done in result.rounds)} tokens generated"),
            ("target", "unchanged, bit by bit"),
        ]
    rows += [(name, acceptance(a)) for name, a in (("before", result.before), ("after", result.after)) if a]
    if result.written:
        rows.append(("wrote", f"{result.destination} ({result.written.architecture})"))
        rows += [("verified", "the head fits its target")] * bool(result.written.verified)
    rows += [("registered", result.registered)] * bool(result.registered)
    out.pairs(rows)


def acceptance(found: Acceptance) -> str:
    positions = " / ".join(f"{share:.3f}" for share in found.by_position)
    return f"accept length {found.accept_length:.3f} ({positions}; {found.verifications} verifications)"
