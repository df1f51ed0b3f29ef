"""Tiny checkpoints, made once, and the command line run in this process."""

from __future__ import annotations

import json
import os
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
from .hub.server import TOKEN, HubServer

HUB = HubServer()  # listens at once: huggingface_hub reads these variables when it is imported
os.environ |= {"HF_ENDPOINT": HUB.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

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


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The local Hub, empty, with a cache of this test's own and a user who is logged in; nobody waits between retries."""
    from huggingface_hub import HfFileSystem, constants
    from huggingface_hub.utils import _http, close_session

    assert HUB.endpoint == constants.ENDPOINT, "huggingface_hub was imported before its endpoint was known"
    HUB.start().reset()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    HfFileSystem.clear_instance_cache()
    close_session()
    yield HUB
    close_session()
