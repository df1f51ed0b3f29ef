"""What a smoke report says on a model card, once it is sure that the report measured the head that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..drafts.identity import comparable
from ..drafts.spec import open_draft
from ..errors import CkptError, error
from ..speculate.baseline import read_report
from ..speculate.plots import bars_file
from .markdown import table
from .subject import Subject

PLOT = (
    "acceptance-by-position.svg"  # the Hub shows images of the repository, and no diagrams that are written in Markdown
)
TITLE = "Share of verifications by accepted drafts"
Smoke = Mapping[str, Any]


def read_smoke(path: Path, root: Path, subject: Subject) -> Smoke:
    """The result of `smoke --json`. Raises NotFound for another file, CkptError for a report on another head or target."""
    result = asdict(read_report(path))
    _check_head(path, result, root, subject)
    _check_target(path, result, subject)
    return result


def _check_head(path: Path, smoke: Smoke, root: Path, subject: Subject) -> None:
    """The weights that were measured are the weights that are published."""
    here = open_draft(root).weights_hash() if subject.kind else "no head"
    there = str(smoke.get("draft_hash") or "not stated")
    if here != there:
        raise error(
            CkptError,
            "report-of-another-head",
            "the smoke report measured another head than the folder holds",
            where=str(path),
            expected=f"{subject.kind or 'a model without a head'}, {here}",
            actual=f"{smoke.get('kind')}, {there}",
            fix="run the smoke test with this folder, and publish that report",
        )


def _check_target(path: Path, smoke: Smoke, subject: Subject) -> None:
    """With the target that the head was made for, where both sides know its weights."""
    made_for, measured = str(subject.identity.get("weights_hash") or ""), str(smoke.get("target_hash") or "")
    if comparable(made_for, measured) and made_for != measured:
        raise error(
            CkptError,
            "report-of-another-target",
            "the smoke report measured the head with another target than it was made for",
            where=str(path),
            expected=made_for,
            actual=measured,
            fix="run the smoke test with the target that the card names",
        )


def section(smoke: Smoke) -> str:
    """The table, every metric named, and the plot; "" without a report."""
    if not smoke:
        return ""
    found, setting = smoke["acceptance"], smoke["setting"]
    lossless = {True: "yes, token for token", False: "no", None: "not compared (sampling)"}[smoke.get("lossless")]
    rows = [
        ("accept length (tokens per verification, the target's own included)", f"{found['accept_length']:.3f}"),
        ("accepted drafts per verification", f"{found['accepted_per_step']:.3f}"),
        ("accept rate (accepted of proposed drafts)", f"{found['accept_rate']:.3f}"),
        *((f"share of verifications that accepted {i} or more", f"{v:.3f}") for i, v in _positions(smoke)),
        ("same text as the target alone", lossless),
    ]
    tree = ("topk", "num_draft_tokens") if setting["topk"] > 1 else ()
    known = ("steps", *tree, "prompts", "max_new_tokens", "method", "temperature", "dtype", "device")
    how = ", ".join(f"{name} {setting[name]}" for name in known if name in setting)
    picture = f"![{TITLE}: {', '.join(f'{v:.1%}' for _, v in _positions(smoke))}]({PLOT})"
    text = table(("metric", "value"), rows)
    return f"## Acceptance\n\n{text}\n\n{picture}\n\n{found['verifications']} verifications; {how}."


def plot(smoke: Smoke) -> bytes:
    """The plot as an SVG file: acceptance by position."""
    shares = _positions(smoke)
    return bars_file(TITLE, [f"{number} or more" for number, _ in shares], [share for _, share in shares]).encode()


def _positions(smoke: Smoke) -> list[tuple[int, float]]:
    return list(enumerate(smoke["acceptance"]["by_position"], 1))
