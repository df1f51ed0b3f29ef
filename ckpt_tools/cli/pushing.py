"""--push-to-hub of the commands that write a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ..errors import Finding
from .output import Output


@dataclass(frozen=True, slots=True)
class Publication:
    """Where to, if anywhere; everything else is `push`'s default."""

    repository: str = ""
    license: str = ""
    private: bool = False

    def check(self) -> None:
        """Raise UsageProblem for a name that is none, before anything is written."""
        if self.repository:
            from ..hub.push import check_name

            check_name(self.repository)

    def send(self, out: Output, folder: Path, target: str = "") -> list[Finding]:
        """Push a finished folder; `target` is what a head was made for. Raises what `push` raises; the folder stays."""
        if not self.repository:
            return []
        from ..hub.options import Options
        from ..hub.push import push

        options = Options(target=target, license=self.license, private=self.private)
        with out.progress("uploading") as starting:
            pushed, findings = push(folder, self.repository, options, starting)
        sent = sum(file.state in ("new", "changed") for file in pushed.files)
        what = f"published as {self.repository}, {sent} files, {pushed.nbytes:,} bytes"
        out.hint(f"{what}: {pushed.url}")
        return [*findings, Finding("pushed", what, where=pushed.url, actual=pushed.commit, severity="note")]


def pushing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options; the command receives a `Publication` as `publication`."""

    @wraps(function)
    def inner(*given: Any, push_to_hub: str | None, push_license: str | None, push_private: bool, **values: Any) -> Any:
        publication = Publication(push_to_hub or "", push_license or "", push_private)
        publication.check()
        return function(*given, publication=publication, **values)

    decorated: Callable[..., Any] = inner
    for option in (
        click.option("--private", "push_private", is_flag=True, help="With --push-to-hub: a private repository."),
        click.option("--license", "push_license", metavar="ID", help="With --push-to-hub: licence id for the card."),
        click.option("--push-to-hub", metavar="ORG/NAME", help="Publish the result as `push` does."),
    ):
        decorated = option(decorated)
    return decorated
