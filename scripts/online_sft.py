#!/usr/bin/env python3
"""slime's experiment in miniature: a target drifts, its draft head is left alone or tuned online, both are timed in one run.

1. SmolLM2-135M with a trained head: how many drafts are accepted?
2. The target is fine-tuned on a small task (`task_texts.py`). It moves, the head does not.
3. The head is tuned on the moved target's own samples (`ckpt-tools tune-draft`).
4. On prompts that nobody trained on, token by token in turns in one run: no speculation, the frozen head, the tuned head.

Writes results.json and report.html into the work folder. `--quick` shows in a few minutes that everything runs; its figures
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from get_smollm2 import get_smollm2
from mimo_form import mimo_form
from task_texts import Text, task_texts

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "tests" / "assets"
ORDINARY = ASSETS / "smollm2-heldout-prompts.json"
SLIME = {"none": 1219, "frozen": 1464, "tuned": 1667}  # tokens/s, MiMo-7B-RL on H200s, slime's blog, April 2026
TRAINED, HELD = 0, 100_000  # where the numbers of the task's texts begin


@dataclass(frozen=True)
class Plan:
    """`drift` optimiser steps of `batch` texts move the last `layers` of the target. Then `rounds` of tuning."""

    drift: int = 200
    batch: int = 1
    layers: int = 10
    drift_rate: float = 3e-4
    rounds: int = 10
    prompts: int = 8
    updates: int = 8
    tune_rate: float = 3e-4
    new_tokens: int = 64
    steps: int = 3
    held_out: int = 8
    ordinary: int = 4


QUICK = Plan(drift=4, rounds=1, prompts=2, updates=2, new_tokens=24, held_out=2, ordinary=1)


@dataclass
class Kind:
    """One way to decode: sums over the prompts. `accept_length` is None without a head."""

    tokens: int = 0
    seconds: float = 0.0
    accept_length: float | None = None
    by_position: list[float] = field(default_factory=list)
    verifications: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def drift(source: Path, out: Path, plan: Plan) -> list[float]:
    """Fine-tune the last layers on the task and write the moved target; returns the loss of every step (nats per token)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    load_model: Any = AutoModelForCausalLM.from_pretrained
    load_tokenizer: Any = AutoTokenizer.from_pretrained
    model, tokenizer = load_model(source, dtype=torch.float32), load_tokenizer(source)
    model.requires_grad_(False)
    moving = [*model.model.layers[-plan.layers :], model.model.norm]
    for part in moving:
        part.requires_grad_(True)
    parameters = [p for part in moving for p in part.parameters()]
    optimizer, losses = torch.optim.AdamW(parameters, lr=plan.drift_rate, weight_decay=0.0), []
    for step in range(plan.drift):
        batch = [encoded(text, tokenizer) for text in task_texts(TRAINED + step * plan.batch, plan.batch)]
        length = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in batch])
        labels = torch.tensor([[-100] * prompt + row[prompt:] + [-100] * (length - len(row)) for row, prompt in batch])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 20 == 0 or step + 1 == plan.drift:
            say(f"drift step {step + 1}/{plan.drift}: loss {losses[-1]:.3f}")
    model.bfloat16().save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(source / name, out / name)
    return losses


def encoded(text: Text, tokenizer: Any) -> tuple[list[int], int]:
    """(token ids of prompt and response, length of the prompt)."""
    message = [{"role": "user", "content": text.prompt}]
    prompt = list(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False))
    return [*prompt, *tokenizer(text.response)["input_ids"], tokenizer.eos_token_id], len(prompt)


def compared(
    target_folder: Path, heads: dict[str, Path], prompts: Sequence[str], plan: Plan, alone: bool = True
) -> dict[str, Kind]:
    """Decode every prompt with each head and without one (unless not `alone`), in turns; raises unless all texts are the
    same."""
    from ckpt_tools.drafts.spec import open_draft
    from ckpt_tools.speculate.build import build_head
    from ckpt_tools.speculate.counters import Counters
    from ckpt_tools.speculate.decode import Limits, plain_steps, speculative_steps
    from ckpt_tools.speculate.measure import Watched, in_turns
    from ckpt_tools.speculate.prompts import Texts
    from ckpt_tools.speculate.target import load_target

    target = load_target(target_folder)
    texts = Texts(target)
    built = {name: build_head(open_draft(folder), target) for name, folder in heads.items()}
    counters = {name: Counters(plan.steps) for name in heads}
    found = {name: Kind() for name in (*["none"] * alone, *heads)}
    limits = Limits(plan.new_tokens, texts.stop)
    for text in prompts:
        ids = texts.prompt(text).ids
        runs = {"none": Watched(plain_steps(target, ids, limits))} if alone else {}
        runs |= {n: Watched(speculative_steps(target, head, ids, limits, counters[n])) for n, head in built.items()}
        in_turns(*runs.values())
        if len({tuple(run.last.tokens) for run in runs.values()}) > 1:
            raise ValueError(f"a head changed the text: {text!r}")
        for name, run in runs.items():
            found[name].tokens += len(run.last.tokens) - 1
            found[name].seconds += run.last.times.loop
    for name, counted in counters.items():
        found[name].accept_length, found[name].by_position = counted.accept_length, counted.by_position
        found[name].verifications = counted.verifications
    return found


def tuned(target: Path, head: Path, out: Path, work: Path, plan: Plan) -> Any:
    """The online tuning, as the command does it."""
    from ckpt_tools.cli.tune_draft import said
    from ckpt_tools.drafts.export import Options as Writing
    from ckpt_tools.drafts.verify import verify_draft
    from ckpt_tools.tune.run import Job, Reading, tune
    from ckpt_tools.tune.settings import Settings

    file = work / "prompts.json"
    texts = task_texts(TRAINED + 50_000, plan.rounds * plan.prompts)
    file.write_text(json.dumps([text.prompt for text in texts]), encoding="utf-8")
    settings = Settings(
        rounds=plan.rounds,
        prompts=plan.prompts,
        new_tokens=plan.new_tokens,
        updates=plan.updates,
        steps=plan.steps,
        learning_rate=plan.tune_rate,
        temperature=0.0,
        save_every=0,
    )
    writing = Writing(verify=lambda folder, goal: verify_draft(folder, goal).findings)
    job = Job(target, head, out, Reading(prompts=str(file)), settings, writing, device="cpu")
    return tune(job, lambda done: say(said(done, plan.rounds))).result


def restored(before: float | None, after: float | None) -> float:
    """Accepted drafts per verification after, as a share of those before."""
    assert before is not None and after is not None
    return (after - 1) / (before - 1) if before > 1 else 0.0


def experiment(work: Path, kind: str, plan: Plan) -> dict[str, Any]:
    """Everything, with the results as one object."""
    started = time.monotonic()
    base, head, moved, new = work / "smollm2", ASSETS / f"smollm2-{kind}", work / "moved", work / "tuned"
    if not base.exists():
        say("SmolLM2-135M-Instruct")
        get_smollm2(base)
    ordinary = json.loads(ORDINARY.read_text(encoding="utf-8"))[: plan.ordinary]
    prompts = {"task": [text.prompt for text in task_texts(HELD, plan.held_out)], "ordinary": ordinary}
    say("before the target moves")
    first = served(base, head, work / "base-mimo", kind)
    before = {name: compared(first, {"frozen": head}, texts, plan, False) for name, texts in prompts.items()}
    at = time.monotonic()
    losses = drift(base, moved, plan)
    drift_seconds = time.monotonic() - at
    target = served(moved, head, work / "moved-mimo", kind)
    say("tuning the head")
    tuning = tuned(target, head, new, work, plan)
    say("side by side")
    heads = {"frozen": head, "tuned": new}
    after = {name: compared(target, heads, texts, plan) for name, texts in prompts.items()}
    return {
        "head": kind,
        "plan": asdict(plan),
        "before": {name: rows(found) for name, found in before.items()},
        "after": {name: rows(found) for name, found in after.items()},
        "restored": {
            name: {
                way: restored(before[name]["frozen"].accept_length, after[name][way].accept_length)
                for way in ("frozen", "tuned")
            }
            for name in prompts
        },
        "drift": {"losses": losses, "seconds": drift_seconds},
        "rounds": [asdict(done) for done in tuning.rounds],
        "target_unchanged": tuning.target_unchanged,
        "slime_tokens_per_second": SLIME,
        "seconds": time.monotonic() - started,
    }


def served(folder: Path, head: Path, out: Path, kind: str) -> Path:
    """The target as the head's family wants it: an MTP head belongs to SmolLM2 in MiMo's form."""
    if kind != "mtp":
        return folder
    shutil.rmtree(out, ignore_errors=True)
    return mimo_form(folder, head, out)


def rows(found: dict[str, Kind]) -> dict[str, Any]:
    """Figures with their ratios to no speculation of the same run, where that was decoded too."""
    alone = found["none"].rate if "none" in found else None
    return {
        name: {**asdict(kind), "tokens_per_second": kind.rate, "ratio": kind.rate / alone if alone else None}
        for name, kind in found.items()
    }


def table(results: dict[str, Any]) -> list[str]:
    """The results as lines of text."""
    lines = []
    for name, found in results["after"].items():
        before = results["before"][name]["frozen"]["accept_length"]
        lines.append(f"{name} prompts (accept length before the target moved: {before:.3f})")
        for way, one in found.items():
            length = "" if one["accept_length"] is None else f"accept length {one['accept_length']:.3f}, "
            share = results["restored"][name].get(way)
            kept = "" if share is None else f", {share:.0%} of the accepted drafts before"
            lines.append(f"  {way:<7} {length}{one['tokens_per_second']:.2f} tokens/s (x {one['ratio']:.2f}){kept}")
    learning = sum(done["learning"] for done in results["rounds"])
    generating = sum(done["seconds"] for done in results["rounds"]) - learning
    slime = results["slime_tokens_per_second"]
    ratios = " : ".join(f"{slime[way] / slime['none']:.2f}" for way in slime)
    lines.append(f"tuning: {generating:.0f} s generating, {learning:.0f} s learning; {results['seconds']:.0f} s in all")
    lines.append(f"slime, 7B on H200s: {' / '.join(map(str, slime.values()))} tokens/s ({ratios}), training time + 5%")
    return lines


def report(results: dict[str, Any]) -> str:
    """A page with the table and plots."""
    from html import escape

    from ckpt_tools.speculate.plots import lines

    rounds = results["rounds"]
    numbers = [done["number"] for done in rounds]
    lengths = {"tuned, while generating": [done["accept_length"] for done in rounds]}
    for way in ("frozen", "tuned"):
        lengths[f"{way}, held out"] = [results["after"]["task"][way]["accept_length"]] * len(rounds)
    steps = range(len(rounds[0]["right"]))
    plots = [
        lines("Accept length by round of tuning (task)", numbers, lengths),
        lines(
            "How often the draft is right, by step of the chain",
            numbers,
            {f"step {k + 1}": [done["right"][k] for done in rounds] for k in steps},
        ),
        lines(
            "Tokens per second: none, frozen, tuned (task, ratio to none)",
            [1, 2, 3],
            {"here": ratios_of(results["after"]["task"]), "slime": [v / SLIME["none"] for v in SLIME.values()]},
        ),
    ]
    text = escape("\n".join(table(results)))
    return f"<!doctype html><meta charset=utf-8><title>Online SFT</title><pre>{text}</pre>{''.join(plots)}"


def ratios_of(found: dict[str, Any]) -> list[float]:
    return [found[way]["ratio"] for way in ("none", "frozen", "tuned")]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="WORK", help="folder for models and results")
    parser.add_argument("--head", choices=("eagle3", "mtp", "eagle"), default="eagle3")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything")
    for name, value in asdict(Plan()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), metavar=type(value).__name__)
    options = parser.parse_args(argv)
    base = QUICK if options.quick else Plan()
    plan = Plan(**{n: v if getattr(options, n) is None else getattr(options, n) for n, v in asdict(base).items()})
    work: Path = options.work
    for stale in ("moved", "tuned"):
        shutil.rmtree(work / stale, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    results = experiment(work, options.head, plan)
    (work / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (work / "report.html").write_text(report(results), encoding="utf-8")
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
