"""Where the entries of a registry lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..refs.commits import Changes

Decide = Callable[[Path], Changes]


class Place(Protocol):
    """`where` is for messages. `read` gives a folder with the entries as they are now; it raises NotFound where there is no
    registry, unless it `may_be_new`.

    `change` asks `decide` what is to change in that folder, with nobody writing in between, and does it: all of it or nothing.
    What `decide` raises goes to the caller.
    """

    @property
    def where(self) -> str: ...

    def read(self, may_be_new: bool = False) -> Path: ...

    def change(self, decide: Decide, message: str) -> None: ...
