"""Exports loaded by the real sglang: every parameter that it needs is written, every tensor is used; and verify-draft, which
knows sglang's names from tables, says the same of whole and of broken exports.

scripts/test.sh builds sglang's environment; run alone, these tests are skipped where there is none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.verify import verify_draft
from ckpt_tools.errors import CkptError

from .formats import heads
from .sglang_cases import BROKEN_CASES, CASES, EAGLE_CASES, LOST_CASES, MTP_CASES, make_all

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "sglang_oracle.sh"
VENV = Path(os.environ.get("SGLANG_VENV", SCRIPT.parents[1] / "build" / "sglang-venv"))
WANTED = os.environ.get("SGLANG_ORACLE", "")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(
        WANTED == "0" or (WANTED != "1" and not any(VENV.glob(".ready-*"))),
        reason="no sglang environment (scripts/sglang_oracle.sh setup)",
    ),
]
# Scales of a quantised KV cache, which no release of these families stores; sglang takes 1.
KV_SCALES = (".k_scale", ".v_scale")


@dataclass(frozen=True)
class Loaded:
    """What sglang did with every case, where the cases are, and their targets."""

    found: dict[str, dict[str, Any]]
    root: Path
    targets: dict[str, Path]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """In one process: sglang's imports take half a minute."""
    root = tmp_path_factory.mktemp("sglang")
    targets = make_all(root)
    names = [*CASES, *LOST_CASES]
    ran = subprocess.run(
        [SCRIPT, "check", *(str(root / name) for name in names)], capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"folder"')]
    assert len(lines) == len(names), ran.stdout + ran.stderr
    yield Loaded({Path(line["folder"]).name: line for line in lines}, root, targets)
    shutil.rmtree(root)


@pytest.mark.parametrize("name", CASES)
def test_sglang_loads_it(name: str, loaded: Loaded) -> None:
    """A whole export completely; of a broken one exactly what is broken is missing."""
    case, found = CASES[name], loaded.found[name]
    assert "error" not in found, found
    assert found["architecture"] == case.architecture
    unwritten = {parameter for parameter in found["unwritten"] if not parameter.endswith(KV_SCALES)}
    assert unwritten == {*case.borrowed, *case.unwritten}
    assert (found["ignored"], found["partial"]) == (list(case.ignored), [])
    assert found["written"] > 5


@pytest.mark.parametrize("name", LOST_CASES)
def test_sglang_loads_nothing_and_says_nothing(name: str, loaded: Loaded) -> None:
    found = loaded.found[name]
    assert "error" not in found and (found["architecture"], found["written"]) == (LOST_CASES[name].architecture, 0)


def errors(loaded: Loaded, name: str) -> set[str]:
    try:
        findings = verify_draft(loaded.root / name, loaded.targets[name]).findings
    except CkptError as problem:
        findings = list(problem.findings)
    return {finding.code for finding in findings if finding.severity == "error"}


@pytest.mark.parametrize("name", [*EAGLE_CASES, *MTP_CASES])
def test_verification_passes_what_sglang_loads(name: str, loaded: Loaded) -> None:
    assert errors(loaded, name) == set()


@pytest.mark.parametrize("name", [*BROKEN_CASES, *LOST_CASES])
def test_verification_sees_what_sglang_drops(name: str, loaded: Loaded) -> None:
    assert set((BROKEN_CASES | LOST_CASES)[name].codes) <= errors(loaded, name)


@pytest.mark.parametrize("name", ["speculators", "safeailab-eagle3", "kimi", "narrow"])
def test_draft_ids_stand_for_the_right_target_ids(name: str, loaded: Loaded) -> None:
    assert loaded.found[name]["hot_ids"] == heads.IDS
