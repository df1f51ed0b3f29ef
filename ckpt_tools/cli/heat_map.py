"""What moved between two checkpoints, as coloured tables: layers by component, and layers by expert. HTML, or PNG."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from math import log10, sqrt
from pathlib import Path
from typing import NamedTuple

from ..compare import MTP, Comparison, Place
from ..errors import CkptError, UsageProblem, error

OUTSIDE = "outside"
COLOURS = ((247, 251, 255), (107, 174, 214), (8, 48, 107))  # light to dark
STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ddd;"
    "padding:2px 6px;font-size:12px;text-align:right}th{background:#f5f5f5}.zero{background:repeating-linear-gradient("
    "45deg,#fff,#fff 4px,#fdd 4px,#fdd 8px)}"
)


class Map(NamedTuple):
    """Root mean square of the tensors' relative change per cell; cells without tensors are absent."""

    title: str
    rows: list[str]
    columns: list[str]
    cells: Mapping[tuple[str, str], float]


def maps(found: Comparison, places: Mapping[str, Place]) -> list[Map]:
    """Layers by component, and layers by expert where experts are stored one by one."""
    changes = dict.fromkeys(places, 0.0)
    for difference in found.differences:
        if difference.relative is None:
            changes.pop(difference.name, None)
        else:
            changes[difference.name] = difference.relative
    components, experts = [], []
    for name, change in changes.items():
        place = places[name]
        row = _row(place)
        components.append((row, _component(name, place), change))
        if "expert" in place:
            experts.append((row, str(place["expert"]), change))
    made = [_map("layers and components", components)]
    return [*made, _map("layers and experts", experts)] if experts else made


def _row(place: Place) -> tuple[int, int]:
    """Sort key of a row: what is outside of layers, layers, MTP layers."""
    if MTP in place:
        return (2, place[MTP])
    return (1, place["layer"]) if "layer" in place else (0, 0)


def _component(name: str, place: Place) -> str:
    """What follows the layer's number in a name, without the expert's."""
    segments = name.split(".")
    numbers = [i for i, segment in enumerate(segments) if segment.isdigit()]
    rest = segments[numbers[0] + 1 :] if place and numbers and len(numbers) > ("expert" in place) else segments
    return ".".join(segment for segment in rest if not segment.isdigit()).removesuffix(".weight")


def _map(title: str, entries: Iterable[tuple[tuple[int, int], str, float]]) -> Map:
    squares: dict[tuple[tuple[int, int], str], list[float]] = {}
    for row, column, change in entries:
        squares.setdefault((row, column), []).append(change**2)
    rows = sorted({row for row, _ in squares})
    columns = sorted(
        {column for _, column in squares}, key=lambda text: (not text.isdigit(), len(text) * text.isdigit(), text)
    )
    names = {row: (OUTSIDE, f"layer {row[1]}", f"MTP {row[1]}")[row[0]] for row in rows}
    cells = {(names[row], column): sqrt(sum(each) / len(each)) for (row, column), each in squares.items()}
    return Map(title, list(names.values()), columns, cells)


def write(path: Path, made: list[Map], title: str) -> None:
    """Write `path`, by its suffix; raises UsageProblem for one that is neither .html nor .png."""
    if path.suffix == ".html":
        path.write_text(page(made, title), encoding="utf-8")
    elif path.suffix == ".png":
        _picture(path, made, title)
    else:
        raise error(
            UsageProblem,
            "heat-map-form",
            "a heat map is .html or .png",
            where=str(path),
            expected="FILE.html or FILE.png",
            actual=path.suffix or "no suffix",
            fix="choose one of them",
        )


def page(made: list[Map], title: str) -> str:
    """One HTML page without scripts or anything to fetch."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"]
    parts.append(
        f"<h1>{html.escape(title)}</h1><p>|a - b| / |a| per tensor, root mean square per cell; hatched: unmoved.</p>"
    )
    for each in made:
        parts.append(f"<h2>{html.escape(each.title)}</h2><table><tr><th></th>")
        parts += [f"<th>{html.escape(column)}</th>" for column in each.columns]
        for row in each.rows:
            parts.append(f"</tr><tr><th>{html.escape(row)}</th>")
            parts += [_cell(each, row, column) for column in each.columns]
        parts.append("</tr></table>")
    return "".join(parts) + "\n"


def _cell(each: Map, row: str, column: str) -> str:
    value = each.cells.get((row, column))
    if value is None:
        return "<td></td>"
    if not value:
        return "<td class=zero>0</td>"
    shade = _shade(value, each)
    red, green, blue = _colour(shade)
    text = "#fff" if shade > 0.5 else "#000"
    return f'<td style="background:rgb({red},{green},{blue});color:{text}">{value:.1e}</td>'


def _shade(value: float, each: Map) -> float:
    """0 to 1 on a logarithmic scale between the smallest and the largest change of a map."""
    moved = [log10(cell) for cell in each.cells.values() if cell]
    low, high = min(moved), max(moved)
    return (log10(value) - low) / (high - low) if high > low else 1.0


def _colour(shade: float) -> tuple[int, int, int]:
    a, b = COLOURS[:2] if shade < 0.5 else COLOURS[1:]
    part = shade * 2 if shade < 0.5 else shade * 2 - 1
    red, green, blue = (round(x + (y - x) * part) for x, y in zip(a, b, strict=True))
    return red, green, blue


def _picture(path: Path, made: list[Map], title: str) -> None:
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise error(
            CkptError,
            "extra-missing",
            "a PNG needs matplotlib",
            where=str(path),
            expected="the extra `plot`",
            actual=str(problem),
            fix="pip install 'ckpt-tools[plot]', or name a file .html, which needs nothing",
        ) from problem
    height = sum(len(each.rows) for each in made)
    figure = Figure(figsize=(12, 2 * len(made) + 0.22 * height), layout="constrained")
    figure.suptitle(title)
    for axes, each in zip(figure.subplots(len(made), 1, squeeze=False)[:, 0], made, strict=True):
        grid = [[each.cells.get((row, column)) or float("nan") for column in each.columns] for row in each.rows]
        norm = LogNorm() if any(each.cells.values()) else None
        image = axes.imshow(grid, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
        axes.set_title(f"{each.title}: |a - b| / |a|, blank where nothing moved")
        axes.set_yticks(range(len(each.rows)), each.rows, fontsize=6)
        step = max(1, len(each.columns) // 40)
        axes.set_xticks(range(0, len(each.columns), step), each.columns[::step], rotation=90, fontsize=6)
        figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)
