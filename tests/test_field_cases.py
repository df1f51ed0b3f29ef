"""The map from public reports to their tests (field_cases.toml) cannot rot: every test that it names exists."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CASES = tomllib.loads((TESTS / "field_cases.toml").read_text())
LABELS = (
    "A1 A2 A4 A5 A7 A9 B1 B2 B3 B5 B7 B9 B11 C1 C2 C4 C6 C8 D1 D2 D4 D5 D7 D8 E1 E3 E4 E6 F1 F2 F3 F4 F6 F8 F10 F11"
    " G1 G2 G4 G6 G7 G9 G11 H1 H2 H4 H6 H7 H9 I1 I2 I4 I5 I7 I8 J1 J2 K1 L1 L2 L5 L6 L8"
)


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def gone(tests: list[str]) -> list[str]:
    """Those that no file holds."""
    places = [test.split("::") for test in tests]
    return [f"{file}::{name}" for file, name in places if not (TESTS / file).is_file() or name not in functions(file)]


@pytest.mark.parametrize("label", LABELS.split())
def test_a_report_has_its_tests(label: str) -> None:
    case = CASES[label]
    assert case["about"] and case["tests"]
    assert gone(case["tests"]) == []


def test_no_report_is_left_over() -> None:
    assert list(CASES) == LABELS.split()


def test_every_file_of_reports_is_named() -> None:
    named = {test.partition("::")[0] for case in CASES.values() for test in case["tests"]}
    files = {f"convert/{path.name}" for path in (TESTS / "convert").glob("test_field_cases_*.py")}
    assert files - named == set()


def test_a_test_that_is_gone_is_noticed() -> None:
    lost = ["test_field_cases.py::test_that_nobody_wrote", "nowhere.py::test_a_report_has_its_tests"]
    assert gone(["test_field_cases.py::test_no_report_is_left_over", *lost]) == lost
