"""Pairs of target and head, made once for a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from .heads import KINDS, pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return {kind: pair(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}
