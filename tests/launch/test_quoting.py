"""Layer patterns in every form that shells and people give them, read without evaluating anything (THUDM/slime#386)."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import ckpt_tools
from ckpt_tools.errors import Finding
from tests.conftest import Tiny

FLAG, LAYERS = "--moe-layer-freq", 4


@pytest.fixture
def model(shared_tiny: Tiny) -> Path:
    """One dense layer and three with experts."""
    return shared_tiny("glm4_moe", layers=LAYERS, mtp=0)


def told(model: Path, args: str = "", script: Path | None = None) -> list[Finding]:
    """What preflight says of the flag."""
    outcome = ckpt_tools.preflight(target=model, args=args, script=script)
    return [f for f in outcome.findings if FLAG in f.what + f.expected + f.actual]


RIGHT = [
    "[0,1,1,1]",
    "[0]+[1]*3",
    "[0]*1+[1]*3",
    "([0]*1+[1]*3)",
    "([0] + 3*[1])",
    "[0, 1, 1, 1]",
    " [0,1,1,1] ",
    "((([0,1,1,1])))",
]


@pytest.mark.parametrize("value", RIGHT)
@pytest.mark.parametrize("form", ["{flag} {value}", "{flag}={value}", "{flag} \\\n {value}"])
def test_a_value_that_the_shell_hands_on_as_it_is(value: str, form: str, model: Path) -> None:
    assert told(model, form.format(flag=FLAG, value=shlex.quote(value))) == []


@pytest.mark.parametrize("value", ["[0,1,1,1]", "([0]*1+[1]*3)", "[0]+[1]*3"])
def test_a_value_without_any_quotes(value: str, model: Path) -> None:
    """As the list of running processes shows it; parentheses would be a subshell in a script."""
    assert told(model, f"--num-experts 12 {FLAG} {value} --moe-router-topk 2") == []


TWICE = ["'([0]*1+[1]*3)'", '"[0,1,1,1]"', "'\"[0]+[1]*3\"'", " '[0,1,1,1]'", "''[0,1,1,1]''"]


@pytest.mark.parametrize("value", TWICE)
def test_quotes_that_became_a_part_of_the_value(value: str, model: Path) -> None:
    """They are understood, and said: Megatron itself would refuse them."""
    (finding,) = told(model, f"{FLAG} {shlex.quote(value)}")
    assert (finding.code, finding.severity) == ("flag-quoted-twice", "warning")
    assert finding.expected.split(maxsplit=1)[1].strip("()").startswith("[0")
    assert value in finding.actual


def test_quotes_of_a_list_in_a_script(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    for quoted, codes in (("\"'([0]*1+[1]*3)'\"", ["flag-quoted-twice"]), ('"[0]*1+[1]*3"', []), ("[0,1,1,1]", [])):
        script.write_text(f"MODEL_ARGS=({FLAG} {quoted})\npython3 train.py ${{MODEL_ARGS[@]}}\n")
        assert [finding.code for finding in told(model, script=script)] == codes


@pytest.mark.parametrize("value", ["[0]+[1]*2", "'[0]+[1]*2'", "[1]*3", "[0,1,1,1,1]", "[]"])
def test_a_pattern_of_another_length_is_told_in_entries(value: str, model: Path) -> None:
    finding = next(f for f in told(model, f"{FLAG} {shlex.quote(value)}") if f.code == "flag-value")
    entries = {"[]": 0, "[0,1,1,1,1]": 5}.get(value, 3)
    assert finding.expected.endswith("(4 entries)")
    assert finding.actual.endswith(f"({entries} entries)")


def test_a_pattern_of_other_layers(model: Path) -> None:
    (finding,) = told(model, f"{FLAG} [1]*4")
    assert (finding.code, finding.severity) == ("flag-value", "error")


HOSTILE = [
    "__import__('os').mkdir('made')",
    "[__import__('os').mkdir('made')]",
    '\'__import__("os").mkdir("made")\'',
    "[0]*__import__('os').mkdir('made')",
    "[1 for _ in range(4)]",
    "open('made', 'w')",
    "(lambda: [0,1,1,1])()",
    "[0,1,1,1].copy()",
    "[1]*10**9",
    "[1]*9999*9999*9999",
    "[True,1,1,1]",
    "[1.0]*4",
    "[[0,1,1,1]]",
    "{0,1}",
    "f'{[0,1,1,1]}'",
    "$(mkdir made)",
    "`mkdir made`",
    "(" * 500 + "1" + ")" * 500,
    "'",
    "",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_else_it_is_is_refused_and_not_evaluated(
    value: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    findings = told(model, f"{FLAG} {shlex.quote(value)}")
    assert [f.severity for f in findings] == ["error"], findings
    assert findings[0].code in ("flag-malformed", "flag-value")
    assert list(tmp_path.iterdir()) == []


def test_a_command_in_the_place_of_a_value_is_not_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("$(mkdir made)", "`mkdir made`", '"$(mkdir made)"'):
        (finding,) = told(model, f"{FLAG} {value}")
        assert (finding.code, finding.severity) == ("flag-unresolved", "error")
    assert list(tmp_path.iterdir()) == []
