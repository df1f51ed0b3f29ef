"""The small job, really converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command, Tiny

from .world import World


@pytest.fixture
def world(tiny: Tiny, tmp_path: Path, command: Command) -> World:
    target = tiny("mimo", heads=4, kv_heads=2, mtp=1)
    command("convert", target, tmp_path / "td", "--tp", 2)
    return World(target, tmp_path / "td")
