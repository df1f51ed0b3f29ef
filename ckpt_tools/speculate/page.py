"""The report as one HTML page that needs nothing else: no script, no network, plots as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..errors import Finding
from .plots import bars, lines, stacked
from .results import ACCEPTED, REJECTED, SmokeReport, Text, Timing

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.error{color:#b00020}.warning{color:#8a5a00}.note{color:#555}
.plots{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0}figcaption{font-size:.85rem;color:#555}
.text{white-space:pre-wrap;background:#f6f6f6;padding:.6rem;border-radius:4px;overflow-wrap:anywhere}
.accepted{background:#c8ecd0}.rejected{color:#b00020;text-decoration:line-through;font-size:.8em;opacity:.75}
svg text{font:11px system-ui,sans-serif;fill:#333}
"""
LOSSLESS = {True: "yes: the target's own text", False: "NO", None: "not compared (sampling)"}


def write_page(path: Path, report: SmokeReport, findings: Sequence[Finding]) -> None:
    path.write_text(page(report, findings), encoding="utf-8")


def page(report: SmokeReport, findings: Sequence[Finding]) -> str:
    parts = [
        f"<h1>Speculative decoding: {escape(Path(report.draft).name)} on {escape(Path(report.target).name)}</h1>",
        _table(facts(report)),
        _findings(findings),
        "<h2>Acceptance</h2>",
        f'<div class="plots">{_acceptance(report)}</div>',
        *(_timing(report.timing) if report.timing else []),
        '<h2>Texts</h2><p><span class="accepted">accepted drafts</span>, <span class="rejected">rejected ones</span>, '
        "and the target's own tokens.</p>",
        *(_text(text) for text in report.texts),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ckpt-tools smoke</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def facts(report: SmokeReport) -> list[tuple[str, str]]:
    """The figures with their names, for the page and for the terminal."""
    a, s = report.acceptance, report.setting
    tree = f" of {s.topk}, trees of {s.num_draft_tokens} tokens" if s.topk > 1 else ""
    rows = [
        ("target", report.target),
        ("draft", f"{report.draft} ({report.kind}, {report.form})"),
        (
            "setting",
            f"{s.steps} steps{tree}, {s.prompts} prompts, up to {s.max_new_tokens} tokens, {s.method}, {s.device} {s.dtype}",
        ),
        ("lossless", LOSSLESS[report.lossless] + (f", {len(report.ties)} near ties" if report.ties else "")),
        ("accept length with bonus", f"{a.accept_length:.3f} of {s.steps + 1} ({a.tokens} tokens)"),
        ("accepted drafts per step", f"{a.accepted_per_step:.3f} ({a.accepted} in {a.verifications} verifications)"),
        ("accept rate", f"{a.accept_rate:.3f} ({a.accepted} of {a.proposed} proposed)"),
        ("at least 1, 2, ... accepted", ", ".join(f"{share:.3f}" for share in a.by_position)),
    ]
    if report.loss:
        loss = report.loss
        rows.append(
            (
                "head's cross-entropy",
                f"{loss.nats:.3f} nats over {loss.tokens} tokens; guessing is ln(V) = {loss.uniform:.3f}",
            )
        )
        rows.append(
            ("first draft right", f"{loss.accuracy:.1%} (draft vocabulary has {loss.coverage:.1%} of the tokens)")
        )
    if report.timing:
        t = report.timing
        rows.append(
            (
                "time in ms",
                f"draft {t.draft:.2f} per step, verification {t.verify[min(s.steps, len(t.verify) - 1)]:.2f}, "
                f"target alone {t.target:.2f}, overhead {t.overhead:.2f}",
            )
        )
        rows.append(("target alone", f"{t.plain_tokens_per_second:.1f} tokens/s"))
        rows.append(
            ("best steps here", str(t.best_steps) if t.best_steps else "none: this head does not pay on this machine")
        )
    return rows


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows) + "</table>"


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    items = "".join(
        f'<li class="{finding.severity}">{escape(f"{finding.severity}: {finding}")}</li>'.replace("\n", "<br>")
        for finding in findings
    )
    return f"<h2>Findings</h2><ul>{items}</ul>"


def _acceptance(report: SmokeReport) -> str:
    a = report.acceptance
    positions = [str(number + 1) for number in range(len(a.by_position))]
    total = max(a.verifications, 1)
    return "".join(
        (
            bars("Share of verifications that accepted at least k drafts", positions, a.by_position),
            bars(
                "Verifications by accepted drafts",
                list(map(str, range(len(a.histogram)))),
                [n / total for n in a.histogram],
            ),
        )
    )


def _timing(timing: Timing) -> list[str]:
    steps = [depth.steps for depth in timing.depths]
    split = [
        (f"{n} steps", (n * timing.draft, timing.verify[n], timing.overhead)) for n in steps if n < len(timing.verify)
    ]
    curves = {
        "measured": [depth.measured for depth in timing.depths],
        "predicted": [depth.predicted for depth in timing.depths],
    }
    rows = "".join(
        f'<tr><td class="n">{d.steps}</td><td class="n">{d.accept_length:.3f}</td><td class="n">{d.tokens_per_second:.1f}</td>'
        f'<td class="n">{d.predicted:.2f}</td><td class="n">{d.measured:.2f}</td><td class="n">{d.error:+.1%}</td></tr>'
        for d in timing.depths
    )
    head = "<tr><th>steps</th><th>accept length</th><th>tokens/s</th><th>predicted</th><th>measured</th><th>error</th></tr>"
    return [
        "<h2>Speed</h2>",
        f"<table>{head}{rows}</table>",
        '<div class="plots">',
        lines("Speed-up against steps (1 is the target alone)", steps, curves),
        stacked(
            "Milliseconds per verification",
            split,
            ("draft", "verification", "overhead"),
            ("target alone", timing.target),
        ),
        "</div>",
    ]


def _text(text: Text) -> str:
    pieces = "".join(
        f'<span class="{piece.kind}">{escape(piece.text)}</span>'
        if piece.kind in (ACCEPTED, REJECTED)
        else escape(piece.text)
        for piece in text.pieces
    )
    mark = {True: "equal to plain decoding", False: "differs from plain decoding", None: "sampled"}[text.equal]
    return f'<h3>{escape(text.prompt)}</h3><div class="text">{pieces}</div><p class="note">{text.tokens} tokens, {mark}</p>'
