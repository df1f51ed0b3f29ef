#!/usr/bin/env python3
"""Does the predicted speed-up hold? `ckpt-tools smoke` on SmolLM2-135M with its trained heads, at 1 to 4 draft steps.

For every head: the target alone and all depths on the same prompts, pass by pass in turns in one process, and what the cost
model says of each depth (docs/smoke.md). Prints a table; the exit status is 1 where a prediction is off by more than
`--within` of the measured speed-up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from get_smollm2 import get_smollm2
from mimo_form import mimo_form

ASSETS = Path(__file__).resolve().parents[1] / "tests" / "assets"
PROMPTS = ASSETS / "smollm2-heldout-prompts.json"
HEADS = ("mtp", "eagle3", "eagle")


def measured(kind: str, smollm2: Path, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The `timing` of a smoke report."""
    head = ASSETS / f"smollm2-{kind}"
    target, words = smollm2, [str(head)]
    if kind == "mtp":
        target, words = mimo_form(smollm2, head, work / "mimo"), []
    command = [sys.executable, "-m", "ckpt_tools", "smoke", str(target), *words, "--prompts", str(PROMPTS), "--json"]
    command += ["--first", str(arguments.prompts), "--max-new-tokens", str(arguments.new_tokens)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    timing: dict[str, Any] | None = json.loads(ran.stdout).get("result", {}).get("timing")
    if not timing:
        raise SystemExit(f"smoke of the {kind} head timed nothing (exit status {ran.returncode})")
    return timing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("heads", nargs="*", metavar="HEAD", help="mtp, eagle3, eagle; default: all")
    parser.add_argument("--prompts", type=int, default=3, help="prompts that are decoded")
    parser.add_argument("--new-tokens", type=int, default=64, help="longest text")
    parser.add_argument("--within", type=float, default=0.15, help="largest error, as a part of the measured speed-up")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.heads) - set(HEADS)):
        parser.error(f"no head is called {', '.join(unknown)}")
    worst = 0.0
    print(f"{'head':8} {'steps':>5} {'accept length':>13} {'measured':>9} {'predicted':>9} {'error':>6}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        smollm2 = get_smollm2(work / "smollm2")
        for kind in arguments.heads or HEADS:
            for depth in measured(kind, smollm2, work, arguments)["depths"]:
                error = depth["error"]
                worst = max(worst, abs(error))
                figures = (
                    f"{depth['accept_length']:13.3f} {depth['measured']:9.3f} {depth['predicted']:9.3f} {error:+6.1%}"
                )
                print(f"{kind:8} {depth['steps']:5} {figures}", flush=True)
    print(f"largest error {worst:.1%}; {'within' if worst <= arguments.within else 'beyond'} {arguments.within:.0%}")
    return int(worst > arguments.within)


if __name__ == "__main__":
    sys.exit(main())
