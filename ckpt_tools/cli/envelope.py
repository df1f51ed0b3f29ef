"""The one JSON object that `--json` prints, for every command and also on failure."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError

from .. import __version__
from ..errors import Finding

T = TypeVar("T")


class Envelope(BaseModel, Generic[T]):
    """`result` is null when the command failed before it had one; `findings` say why."""

    model_config = ConfigDict(extra="forbid")

    ok: bool
    command: str
    version: str
    exit_code: int
    findings: list[Finding]
    result: T | None


def envelope_json(command: str, result: Any, findings: list[Finding], code: int) -> str:
    kind: Any = Envelope.__class_getitem__(type(result) if result is not None else Any)
    envelope: Envelope[Any] = kind(
        ok=code == 0, command=command, version=__version__, exit_code=int(code), findings=findings, result=result
    )
    try:
        return envelope.model_dump_json(indent=2)
    except (
        PydanticSerializationError
    ):  # a path that is no UTF-8; Python's own writer escapes its bytes as \udc80 to \udcff
        return json.dumps(envelope.model_dump(), indent=2)
