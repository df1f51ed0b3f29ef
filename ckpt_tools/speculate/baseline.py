"""This run against an earlier one: has the accept length fallen, and which of the two weights moved?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..errors import Finding, NotFound, error
from ..stores.hf_folder import read_json
from .results import Setting, SmokeReport

FALL = 0.05  # share of the accepted drafts per step that may be lost before it is an error
COMPARED = ("steps", "topk", "num_draft_tokens", "max_new_tokens", "prompts", "method", "temperature")


def read_report(path: Path) -> SmokeReport:
    """A report as `smoke --json` prints it. Raises NotFound if it is none."""
    found = read_json(path)
    result = found.get("result", found)
    try:
        report: SmokeReport = TypeAdapter(SmokeReport).validate_python(result)
    except ValueError as problem:
        raise error(
            NotFound,
            "report-unreadable",
            "this is no report of a smoke test",
            where=str(path),
            expected="what `ckpt-tools smoke --json` printed",
            actual=str(problem).splitlines()[0],
            fix="run the smoke test again with --json and keep its output",
        ) from problem
    return report


def against(report: SmokeReport, baseline: SmokeReport, where: Path) -> list[Finding]:
    """Findings of the comparison; figures of other settings are not compared."""
    if different := _differences(report.setting, baseline.setting):
        return [
            Finding(
                "baseline-setting",
                "the baseline was measured in another setting, so the figures are not compared",
                str(where),
                ", ".join(f"{name} {value}" for name, value, _ in different),
                ", ".join(f"{name} {value}" for name, _, value in different),
                "measure again with the baseline's setting",
                "warning",
            )
        ]
    before, now = baseline.acceptance, report.acceptance
    fell = now.accepted_per_step < before.accepted_per_step * (1 - FALL)
    figures = (f"accept length {before.accept_length:.3f}", f"accept length {now.accept_length:.3f}")
    head_moved, target_moved = report.draft_hash != baseline.draft_hash, _moved(report, baseline)
    found: list[Finding] = []
    if fell and target_moved and not head_moved:
        found.append(
            Finding(
                "draft-frozen",
                "the target has moved and the head has not: its drafts are accepted less",
                str(where),
                *figures,
                "tune the head for these weights (`ckpt-tools tune-draft`), or train it with the target",
            )
        )
    elif fell:
        found.append(
            Finding(
                "accept-length-fell", "fewer drafts are accepted than before", str(where), *figures, "see what changed"
            )
        )
    if head_moved:
        found.append(
            Finding(
                "draft-changed",
                "the head's tensors are not those of the baseline",
                str(where),
                baseline.draft_hash,
                report.draft_hash,
                severity="note",
            )
        )
    return found


def _moved(report: SmokeReport, baseline: SmokeReport) -> bool:
    return bool(report.target_hash) and report.target_hash != baseline.target_hash


def _differences(now: Setting, before: Setting) -> list[tuple[str, Any, Any]]:
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in COMPARED]
    return [(name, old, new) for name, old, new in pairs if old != new]
