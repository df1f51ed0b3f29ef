"""The README shows the support matrix that the tables make."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.families import FAMILIES
from ckpt_tools.families.base import Family
from ckpt_tools.support import smoke_of
from tests.conftest import Command

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- families -->", "<!-- /families -->"


def test_the_readme_shows_the_matrix(command: Command) -> None:
    """If this fails, put the output of `ckpt-tools families --markdown` between the markers."""
    text = README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == command("families", "--markdown").out.strip()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_smoke_runs_what_transformers_has(family: Family) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    from ckpt_tools.speculate.target import BODIES

    known = [BODIES.get(kind, kind) in CAUSAL for kind in family.model_types]
    assert (smoke_of(family) != "by server") == all(known) == any(known)
