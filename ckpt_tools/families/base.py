"""What a family is: how its config is read and what its table says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..mapping.rules import Table
from .config import Fields
from .dims import Dims


@dataclass(frozen=True, slots=True)
class Family:
    """`dims` reads a config and gathers its problems; `table(dims, mtp, padded_vocab)` enumerates every tensor.

    `mtp_field` is the config field that counts MTP layers ("" if the family has none); `draft_class` is the class that
    SGLang loads the MTP head with.
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    dims: Callable[[Fields], Dims]
    table: Callable[[Dims, int, int], Table]
    mtp_field: str = ""
    draft_class: str = ""
