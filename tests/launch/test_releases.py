"""The table of SGLang's flags: against the real argument parser, and how a release is chosen."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from make_sglang_flags import flags_of, table

from ckpt_tools.launch.releases import LATEST, RENAMED, SLIME_METRICS, SLIME_SETS, release, versions
from tests.conftest import Command
from tests.golden import load

from .checkpoints import write_target

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "sglang_oracle.sh"
VENV = Path(os.environ.get("SGLANG_VENV", SCRIPT.parents[1] / "build" / "sglang-venv"))
installed = pytest.mark.skipif(
    not any(VENV.glob(".ready-*")), reason="no sglang environment (scripts/sglang_oracle.sh setup)"
)

ASK = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = sorted(o for a in parser._actions for o in a.option_strings if o.startswith("--"))
parsed = [vars(parser.parse_args(["--model-path", "x", *words])) for words in json.loads(sys.argv[1])]
keys = [k for k in (parsed[0] if parsed else {}) if k.startswith("speculative_")]
print(json.dumps({"options": options, "parsed": [{k: p[k] for k in keys} for p in parsed]}))
"""


def real_sglang(command_lines: list[list[str]]) -> dict[str, Any]:
    """What the real ServerArgs registers, and what it makes of command lines."""
    done = subprocess.run(
        [str(VENV / "bin" / "python"), "-c", ASK, json.dumps(command_lines)],
        env={
            **os.environ,
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(SCRIPT.parent / "sglang_oracle" / "stand_ins"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.oracle
@pytest.mark.slow
@installed
def test_the_table_is_that_of_the_real_parser_and_it_reads_what_we_print(command: Command, tmp_path: Path) -> None:
    goldens = ("MiMo-7B", "GLM-5.2", "DeepSeek-R1")
    lines = [
        shlex.split(
            command("serve-args", write_target(tmp_path / name, load(name).config), "--server-version", LATEST).out
        )
        for name in goldens
    ]
    real = real_sglang(lines)
    assert {"--" + flag for flag in release("0.5.23").flags} == set(real["options"]) - {"--help"}
    numbers = [
        (p["speculative_num_steps"], p["speculative_eagle_topk"], p["speculative_num_draft_tokens"])
        for p in real["parsed"]
    ]
    assert numbers == [(3, 1, 4), (4, 1, 5), (3, 1, 4)]
    assert {p["speculative_algorithm"] for p in real["parsed"]} == {"EAGLE"}
    assert [p["speculative_draft_attention_backend"] for p in real["parsed"]] == [None, "dsa", None]


def test_flags_are_read_from_both_ways_of_declaring_them() -> None:
    source = """
parser.add_argument("--old-style", "-o", type=int)
parser.add_argument("--switch", action=argparse.BooleanOptionalAction)
class Fields:
    plain_field: A[int, "help"] = 1
    named: A[int, Arg(help="x", cli_name="--other-name", aliases=["--alias"])] = 1
    hidden: A[int, Arg(no_cli=True)] = 1
    untouched: int = 1
    both: A[bool, Arg(help="x", action=argparse.BooleanOptionalAction)] = True
"""
    assert flags_of(source) == {
        "--old-style",
        "--switch",
        "--no-switch",
        "--plain-field",
        "--other-name",
        "--alias",
        "--both",
        "--no-both",
    }


def test_releases_are_in_order() -> None:
    made = table({v: (set(), set()) for v in ("0.5.15.post1", "0.5.9", "0.5.15", "0.5.6")})
    assert made["versions"] == ["0.5.6", "0.5.9", "0.5.15", "0.5.15.post1"]
    assert versions()[-1] == LATEST


@pytest.mark.parametrize(
    ("asked", "used"),
    [("0.5.6", "0.5.6"), ("0.5.10", "0.5.9"), ("0.5.15", "0.5.12.post1"), ("0.5.23", "0.5.23"), ("0.6", "0.5.23")],
)
def test_the_last_table_before_a_release_is_used(asked: str, used: str) -> None:
    assert release(asked).version == used
    assert release(asked).exact == (asked == used)


@pytest.mark.parametrize("asked", ["0.4.9", "latest", ""])
def test_a_release_without_a_table(asked: str) -> None:
    with pytest.raises(ValueError, match="no table"):
        release(asked)


def test_every_renaming_has_both_names_in_some_release() -> None:
    every = set().union(*(release(version).flags for version in versions()))
    assert {name for pair in RENAMED.items() for name in pair} <= every
    assert every >= SLIME_SETS


def test_the_counters_that_slime_reads_went_away_with_0_5_12() -> None:
    there = {version: all(name in release(version).metrics for name in SLIME_METRICS) for version in versions()}
    assert there == {"0.5.6": True, "0.5.9": True, "0.5.12.post1": False, "0.5.15.post1": False, "0.5.23": False}
