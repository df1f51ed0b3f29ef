"""Facts that stand in two places agree: SGLang's classes and the families, the codes and their documentation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ckpt_tools.drafts.servers import SERVERS, SGLANG_EAGLE, SGLANG_MTP, every_architecture
from ckpt_tools.families import FAMILIES
from tests.golden import golden

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "verify-draft.md").read_text()
MAPS = ROOT / "ckpt_tools/drafts/formats/maps.py"
SOURCES = [
    MAPS,
    *(path for name in ("drafts/checks", "registry") for path in sorted((ROOT / "ckpt_tools" / name).glob("*.py"))),
]
# Who makes findings, and which argument is the code.
MAKERS = {"Finding": 0, "_map_finding": 1, "error": 1}


def test_classes_agree_with_the_families() -> None:
    """The architecture of every release whose family has a draft class leads to that class."""
    classes = {model_type: family.draft_class for family in FAMILIES for model_type in family.model_types}
    seen = set()
    for name in golden.names():
        config = golden.load(name).config
        if wanted := classes.get(config["model_type"], ""):
            seen.add(wanted)
            assert SGLANG_MTP[config["architectures"][0]] == wanted, name
    assert len(seen) >= 7


def codes(path: Path) -> set[str]:
    """String constants that stand where a maker of findings takes its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
            position = MAKERS[node.func.id]
            if len(node.args) > position:
                found |= {
                    part.value
                    for part in ast.walk(node.args[position])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and "-" in part.value
                }
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_code_is_documented(path: Path) -> None:
    assert {code for code in codes(path) if f"`{code}`" not in DOCS} == set()


def test_the_codes_are_found() -> None:
    every = set().union(*map(codes, SOURCES))
    assert {"hidden-size", "d2t-range", "embed-mismatch", "lm-head-mismatch", "mtp-index", "name-taken"} <= every


def test_every_server_has_its_strings() -> None:
    assert all(every_architecture(server) for server in SERVERS)
    assert {known.name for known in SGLANG_EAGLE} <= set(every_architecture("sglang"))
