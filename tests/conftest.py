"""Tiny checkpoints, made once, and the command line run in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from make_tiny import make_tiny

from ckpt_tools.cli import cli
from ckpt_tools.cli.boundary import run

from .command import SCHEMAS, Ran, check_envelope

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

Tiny = Callable[..., Path]


class Command(Protocol):
    def __call__(self, *words: object, code: int | None = 0) -> Ran: ...


@pytest.fixture(scope="session")
def shared_tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """`make_tiny` that makes every checkpoint once; do not change what it returns."""
    made: dict[str, Path] = {}

    def tiny(family: str, **options: Any) -> Path:
        options = {"layers": 2, "hidden": 32, "ffn": 48, "vocab": 40, **options}
        key = json.dumps([family, options], sort_keys=True)
        if key not in made:
            made[key] = make_tiny(family, tmp_path_factory.mktemp(family) / "model", **options)
        return made[key]

    return tiny


@pytest.fixture
def tiny(shared_tiny: Tiny, tmp_path: Path) -> Iterator[Tiny]:
    """A tiny checkpoint of this test's own, to break at will: `tiny(family, **options of make_tiny)`."""

    def copied(family: str, **options: Any) -> Path:
        number = sum(1 for _ in tmp_path.glob("hf*"))
        return Path(shutil.copytree(shared_tiny(family, **options), tmp_path / f"hf{number}"))

    yield copied


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `ckpt-tools WORDS`; a printed JSON object is checked against its schema. `code` None accepts every exit code."""

    def call(*words: object, code: int | None = 0) -> Ran:
        arguments = [str(word) for word in words]
        capsys.readouterr()
        status = run(cli, arguments)
        captured = capsys.readouterr()
        ran = Ran(int(status), captured.out, captured.err)
        if "--json" in arguments:
            check_envelope(ran, arguments[0] if (SCHEMAS / f"{arguments[0]}.json").is_file() else "error")
        assert code is None or ran.code == code, ran.out + ran.err
        return ran

    return call
