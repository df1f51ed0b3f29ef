"""The only module that prints: stdout is the result and nothing else, everything else goes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import ExitCode, Finding

Progress = Callable[[int], None]
STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def fail(command: str, as_json: bool, findings: Sequence[Finding], code: ExitCode) -> int:
    """Say what is wrong and return the exit code."""
    if as_json:
        from .envelope import envelope_json

        print(envelope_json(command, None, list(findings), code))
    else:
        show_findings(findings)
    return code


def show_findings(findings: Iterable[Finding], least: str = "note") -> None:
    """Findings on stderr, coloured on a terminal."""
    ranks = list(reversed(STYLES))
    shown = [finding for finding in findings if ranks.index(finding.severity) >= ranks.index(least)]
    if not shown:
        return
    if not sys.stderr.isatty():
        for finding in shown:
            print(f"{finding.severity}: {finding}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    for finding in shown:
        head, _, details = str(finding).partition("\n")
        console.print(
            Text(f"{finding.severity}: ", STYLES[finding.severity])
            + Text(head, "bold")
            + Text("\n" + details if details else "")
        )


@dataclass(frozen=True, slots=True)
class Output:
    """How one command talks: `json` prints one object, `quiet` only the result and errors, `verbose` notes as well."""

    command: str
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def finish(
        self, result: Any, findings: Sequence[Finding], human: Callable[[], None], code: ExitCode = ExitCode.OK
    ) -> int:
        """Print the result in the chosen form and return the exit code."""
        if self.json:
            from .envelope import envelope_json

            print(envelope_json(self.command, result, list(findings), code))
            return code
        show_findings(findings, "error" if self.quiet else "note" if self.verbose else "warning")
        human()
        return code

    def fail(self, findings: Sequence[Finding], code: ExitCode) -> None:
        """Say what is wrong, at once."""
        fail(self.command, self.json, findings, code)
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """One line of the result."""
        print(text)

    def hint(self, text: str) -> None:
        """Talk, not result."""
        if not self.quiet and not self.json:
            print(text, file=sys.stderr)

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Aligned label and value."""
        kept = list(rows)
        width = max((len(label) for label, _ in kept), default=0) + 2
        for label, value in kept:
            print(f"{label:<{width}}{value}")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
        """A plain aligned table; `right` are the columns that hold numbers."""
        every = [list(headers), *(list(row) for row in rows)]
        widths = [max(len(row[i]) for row in every) for i in range(len(headers))]
        for number, row in enumerate(every):
            cells = [
                cell.rjust(w) if i in right else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())
            if number == 0:
                print("  ".join("-" * width for width in widths))

    @contextmanager
    def progress(self, title: str, shown: bool = True) -> Iterator[Callable[[int], Progress | None]]:
        """A bar by bytes on a terminal, nothing elsewhere; yields a function from the total to the callback."""
        if not shown or self.json or self.quiet or not sys.stderr.isatty():
            yield lambda total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=Console(stderr=True)) as bars:

            def start(total: int) -> Progress:
                task = bars.add_task(title, total=total)
                return lambda done: bars.advance(task, done)

            yield start


def human_bytes(count: int) -> str:
    """1234567 -> 1.23 MB (decimal, as disks and the Hub count)."""
    value, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def short(text: str, most: int = 60) -> str:
    """One cell; the whole text stands in the finding."""
    return text if len(text) <= most else text[: most - 3] + "..."
