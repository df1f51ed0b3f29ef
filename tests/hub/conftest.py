"""A head to publish, and its target on the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drafts.heads import asset, target_of
from tests.hub.publishing import BASE
from tests.hub.server import HubServer


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A trained EAGLE-3 head that states its licence."""
    folder = asset("eagle3", tmp_path / "head")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: en\n---\n# My head\n\nTrained on texts.\n")
    return folder


@pytest.fixture
def base(hub: HubServer, tmp_path: Path) -> str:
    """The head's target on the Hub, with its commit."""
    repository = hub.add(BASE, target_of("eagle3", tmp_path / "target"))
    return f"{BASE}@{repository.refs['main']}"
