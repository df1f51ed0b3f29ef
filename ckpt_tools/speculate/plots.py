"""Small plots as SVG, inline or as a file; numbers stand beside what is drawn, so nothing depends on colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 200, 40, 24, 12
COLOURS = ("#2f6f9f", "#d08a1d", "#8a8a8a", "#4f9d69")


def _svg(title: str, body: str, height: int = HEIGHT, more: str = "") -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}"{more}>{body}</svg>'


def _figure(title: str, body: str, height: int = HEIGHT) -> str:
    return f"<figure>{_svg(title, body, height)}<figcaption>{escape(title)}</figcaption></figure>"


def bars(title: str, labels: Sequence[str], shares: Sequence[float]) -> str:
    """Bars of shares between 0 and 1."""
    return _figure(title, _bars(labels, shares))


def bars_file(title: str, labels: Sequence[str], shares: Sequence[float]) -> str:
    """The same as the text of an SVG file: with a background of its own and without a page's styles."""
    more = ' xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return _svg(title, f"<title>{escape(title)}</title>{paper}{_bars(labels, shares)}", more=more) + "\n"


def _bars(labels: Sequence[str], shares: Sequence[float]) -> str:
    step = (WIDTH - LEFT) / max(len(shares), 1)
    room = HEIGHT - BOTTOM - 2 * TOP
    parts = []
    for number, (label, share) in enumerate(zip(labels, shares, strict=True)):
        x, tall = LEFT + number * step, share * room
        top = HEIGHT - BOTTOM - tall
        parts.append(
            f'<rect x="{x + step * 0.15:.1f}" y="{top:.1f}" width="{step * 0.7:.1f}" height="{tall:.1f}" fill="{COLOURS[0]}"/>'
            f'<text x="{x + step / 2:.1f}" y="{top - 4:.1f}" text-anchor="middle">{share:.1%}</text>'
            f'<text x="{x + step / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>'
        )
    return "".join(parts)


def lines(title: str, xs: Sequence[int], curves: Mapping[str, Sequence[float]]) -> str:
    """Curves over whole numbers, with a line at 1."""
    most = max(1.2, *(value for curve in curves.values() for value in curve))
    room, span = HEIGHT - BOTTOM - 2 * TOP, max(len(xs) - 1, 1)

    def place(number: int, value: float) -> tuple[float, float]:
        return LEFT + 20 + number * (WIDTH - LEFT - 130) / span, HEIGHT - BOTTOM - value / most * room

    one = place(0, 1.0)[1]
    parts = [
        f'<line x1="{LEFT}" y1="{one:.1f}" x2="{WIDTH - 90}" y2="{one:.1f}" stroke="#999" stroke-dasharray="4 3"/>'
    ]
    parts += [
        f'<text x="{place(n, 0)[0]:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{x}</text>' for n, x in enumerate(xs)
    ]
    for number, (name, curve) in enumerate(curves.items()):
        points = [place(n, value) for n, value in enumerate(curve)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[number]
        dash = ' stroke-dasharray="2 3"' if number else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 4 + 14 * number:.1f}">{escape(name)} {curve[-1]:.2f}</text>')
    return _figure(title, "".join(parts))


def stacked(
    title: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    names: Sequence[str],
    mark: tuple[str, float],
) -> str:
    """Horizontal bars of parts, and a mark across them."""
    most = max([mark[1], *(sum(parts) for _, parts in rows)]) * 1.15
    height = 26 * len(rows) + 60
    scale = (WIDTH - 70) / most
    body = []
    for number, (label, parts) in enumerate(rows):
        y, x = 10 + 26 * number, 60.0
        body.append(f'<text x="0" y="{y + 13}">{escape(label)}</text>')
        for colour, part in zip(COLOURS, parts, strict=False):
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{part * scale:.1f}" height="18" fill="{colour}"/>')
            x += part * scale
        body.append(f'<text x="{x + 4:.1f}" y="{y + 13}">{sum(parts):.1f}</text>')
    x, low = 60 + mark[1] * scale, 26 * len(rows) + 10
    body.append(f'<line x1="{x:.1f}" y1="4" x2="{x:.1f}" y2="{low}" stroke="#000" stroke-dasharray="4 3"/>')
    body.append(f'<text x="{x:.1f}" y="{low + 12}" text-anchor="middle">{escape(mark[0])} {mark[1]:.1f}</text>')
    for number, name in enumerate(names):
        at = 60 + number * 110
        body.append(f'<rect x="{at}" y="{low + 22}" width="10" height="10" fill="{COLOURS[number]}"/>')
        body.append(f'<text x="{at + 14}" y="{low + 31}">{escape(name)}</text>')
    return _figure(title, "".join(body), height)
