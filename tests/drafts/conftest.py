"""verify-draft as the tests of its checks call it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import Ran
from tests.conftest import Command

Run = Callable[..., Ran]


@pytest.fixture
def verify(command: Command) -> Run:
    """`verify(head, target, *words, code=0)`."""

    def call(head: Path, model: Path, *words: object, code: int = 0) -> Ran:
        return command("verify-draft", head, "--target", model, "--json", *words, code=code)

    return call


def severities(ran: Ran) -> dict[str, str]:
    return {finding["code"]: finding["severity"] for finding in ran.findings}
