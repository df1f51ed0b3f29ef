"""The command line as a process: exit codes, what goes to stdout and stderr, what is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Ran, check_envelope
from tests.conftest import Tiny

PROGRAM = "from ckpt_tools.cli import main; main()"
HEAVY = ("torch", "numpy", "transformers", "pydantic", "huggingface_hub", "rich", "safetensors", "megatron")


def ckpt_tools(*words: object) -> Ran:
    arguments = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)


def imported(*words: object) -> set[str]:
    """Top-level modules that the command line had imported when it was through."""
    program = (
        "import json, sys; from ckpt_tools.cli import cli; from ckpt_tools.cli.boundary import run;"
        "code = run(cli, sys.argv[1:]);"
        "print(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]), file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(names)


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, ckpt_tools; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint((*HEAVY, "click"))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["convert", "--help"], ["inspect", "-h"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    assert imported(*words).isdisjoint(HEAVY)


def test_verify_draft_loads_nothing_heavy(shared_tiny: Tiny, tmp_path: Path) -> None:
    """Nor for a head that records its target, which is here with its weights: imports would take longer than the checks."""
    model, head = shared_tiny("mimo"), tmp_path / "head"
    assert ckpt_tools("extract-draft", model, head).code == 0
    assert imported("verify-draft", head, "--target", model).isdisjoint(HEAVY)


def test_conversions_without_a_cast_never_load_torch(shared_tiny: Tiny, tmp_path: Path) -> None:
    source, there, back = shared_tiny("mimo", shards=2), tmp_path / "td", tmp_path / "hf"
    for words in (
        ["convert", source, there, "--verify"],
        ["convert", there, back, "--verify"],
        ["inspect", there, "--check"],
        ["compare", source, there],
        ["megatron-args", source],
        ["families"],
    ):
        assert imported(*words).isdisjoint(HEAVY), words
    assert "torch" in imported("convert", source, tmp_path / "cast", "--dtype", "float32")


def test_every_exit_code(shared_tiny: Tiny, tmp_path: Path) -> None:
    source, there = shared_tiny("llama"), tmp_path / "td"
    assert ckpt_tools("convert", source, there).code == 0
    assert ckpt_tools("compare", source, shared_tiny("llama", seed=1)).code == 1
    assert ckpt_tools("convert", source).code == 2
    assert ckpt_tools("convert", source, there, "--layout", "sideways").code == 2
    assert ckpt_tools("inspect", tmp_path / "nothing").code == 3
    assert ckpt_tools("convert", source, there).code == 5
    assert ckpt_tools("no-such-command").code == 2


def test_the_installed_command_is_this_one(shared_tiny: Tiny) -> None:
    script = Path(sys.executable).with_name("ckpt-tools")
    done = subprocess.run([script, "families"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "mimo" in done.stdout


@pytest.mark.parametrize("as_json", [True, False])
def test_stdout_is_the_result_and_nothing_else(as_json: bool, shared_tiny: Tiny, tmp_path: Path) -> None:
    words = ["--json"] if as_json else []
    ran = ckpt_tools("convert", shared_tiny("llama"), tmp_path / "td", *words)
    assert ran.code == 0
    assert "rope-not-expressible" in (ran.out if as_json else ran.err)
    if as_json:
        check_envelope(ran, "convert")
    else:
        assert "warning" not in ran.out
        assert "\x1b" not in ran.out + ran.err
        assert "\r" not in ran.out + ran.err
    failed = ckpt_tools("convert", tmp_path / "no such", tmp_path / "x", *words)
    assert failed.code == 3
    if as_json:
        check_envelope(failed, "convert")
    else:
        assert failed.out == ""
        assert failed.err.startswith("error: ref-not-found: ")


def test_a_closed_pipe_is_no_traceback(shared_tiny: Tiny) -> None:
    program = f"{sys.executable} -c '{PROGRAM}' inspect {shared_tiny('mimo')} | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_with_130_and_leaves_nothing(shared_tiny: Tiny, tmp_path: Path) -> None:
    program = (
        "import sys; from ckpt_tools.convert import writing as conversion\n"
        "def interrupted(*words): raise KeyboardInterrupt\n"
        "conversion.execute = interrupted\n"
        "from ckpt_tools.cli import main; main()"
    )
    arguments = [sys.executable, "-c", program, "convert", str(shared_tiny("llama")), str(tmp_path / "td")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
