"""preflight as a command, as a function, with a YAML file, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckpt_tools
from ckpt_tools.errors import NotFound, UsageProblem, error
from ckpt_tools.launch.releases import LATEST
from tests.conftest import Command
from tests.golden import load

from .checkpoints import write_stored, write_target
from .slime import PUBLISHED, write

SLIMES_IMAGE = "0.5.15.post1"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """slime's MiMo job with all that it names."""
    config = load("MiMo-7B").config
    target = write_target(tmp_path / "hf", config)
    stored = write_stored(tmp_path / "td", config, 1, 151808)
    return write(PUBLISHED["mimo-7B"], tmp_path, target, stored)


def test_a_report_for_people(command: Command, script: Path) -> None:
    ran = command("preflight", "--script", script, "--sglang-version", SLIMES_IMAGE)
    assert ran.out.splitlines()[-1] == "ready"
    assert "model flags" in ran.out
    assert "head weights" in ran.out
    assert "server-metrics" in ran.err


def test_a_report_for_programs(command: Command, script: Path) -> None:
    ran = command("preflight", "--script", script, "--args", "--num-layers 35", "--json", code=1)
    assert ran.result["fits"] is False
    assert ran.result["trainer"] == "slime"
    finding = ran.finding("flag-value")
    assert finding["where"] == "--args:1"
    assert (finding["expected"], finding["actual"]) == ("--num-layers 36", "--num-layers 35")
    assert {check["outcome"] for check in ran.result["checks"]} <= {"ok", "note", "warning", "error", "not checked"}


def test_where_a_wrong_flag_stands(command: Command, script: Path) -> None:
    model = script.parent / "models" / "mimo-7B-rl.sh"
    model.write_text(model.read_text().replace("--rotary-base 640000", "--rotary-base 10000"))
    ran = command("preflight", "--script", script, "--json", code=1)
    line = next(n for n, text in enumerate(model.read_text().splitlines(), 1) if "--rotary-base" in text)
    assert ran.finding("flag-value")["where"] == f"mimo-7B-rl.sh:{line}"


def test_a_missing_backslash(command: Command, script: Path) -> None:
    """slime's Kimi-K2 script has lost one: nothing after it reaches the command."""
    text = script.read_text()
    script.write_text(text.replace("--colocate \\\n", "--colocate\n"))
    ran = command("preflight", "--script", script, "--json", code=1)
    assert "MODEL_ARGS" in ran.finding("flags-unused")["actual"]
    assert "flag-missing" not in ran.codes


def test_variables_of_the_environment(command: Command, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = script.read_text()
    script.write_text(text.replace(str(script.parent), "$BASE_DIR").replace("$BASE_DIR/models", "${HERE}/models"))
    unknown = command("preflight", "--script", script, "--json", code=1)
    assert (
        "BASE_DIR is not set" in unknown.finding("flag-unresolved")["actual"]
        if unknown.codes.count("flag-unresolved") == 1
        else True
    )
    assert "flag-unresolved" in unknown.codes
    command("preflight", "--script", script, "--set", f"BASE_DIR={script.parent}", "--sglang-version", SLIMES_IMAGE)
    monkeypatch.setenv("BASE_DIR", str(script.parent))
    command("preflight", "--script", script, "--set", "BASE_DIR")
    monkeypatch.delenv("BASE_DIR")
    command("preflight", "--script", script, "--set", "BASE_DIR", code=2)


def test_a_value_that_nobody_needs_may_stay_unknown(command: Command, script: Path) -> None:
    command("preflight", "--script", script, "--args", "--save $SOMEWHERE --wandb-key $(cat key)")


def test_lists_that_a_missing_file_would_set(command: Command, script: Path) -> None:
    (script.parent / "models" / "mimo-7B-rl.sh").unlink()
    ran = command("preflight", "--script", script, "--json", code=1)
    assert {"script-doubt", "flag-unresolved"} <= set(ran.codes)
    assert "flag-missing" not in ran.codes


def test_a_script_of_another_language(command: Command, tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text('print("hello)\n')
    assert command("preflight", "--script", tmp_path / "x.sh", "--json", code=1).codes == ["script-invalid"]
    (tmp_path / "x.sh").write_text("echo hello\n")
    assert command("preflight", "--script", tmp_path / "x.sh", "--json", code=1).codes == ["no-flags"]


def test_what_the_user_names_and_is_not_there(command: Command, script: Path) -> None:
    for option in ("--target", "--torch-dist", "--draft", "--script"):
        command("preflight", option, script.parent / "nothing-here", code=3)
    command("preflight", script.parent / "no.yaml", code=3)


def test_nothing_to_check(command: Command) -> None:
    assert command("preflight", "--json", code=2).codes == ["nothing-to-check"]
    assert command("preflight", "--args", "--a 'b", "--json", code=2).codes == ["arguments-unreadable"]
    assert command("preflight", "--args", "--a", "--sglang-version", "0.1", "--json", code=2).codes == [
        "server-version"
    ]


# --- YAML


def config(script: Path, **values: Any) -> Path:
    path = script.parent / "job.yaml"
    path.write_text(json.dumps({"script": script.name, "sglang_version": SLIMES_IMAGE} | values))  # JSON is YAML
    return path


def test_inputs_from_a_file(command: Command, script: Path) -> None:
    """Relative paths start at the file; a list of flags and one text are the same."""
    path = config(script, target="hf", torch_dist="td", args=["--actor-num-nodes", 2], variables={"A": 1}, draft=None)
    ran = command("preflight", path, "--json")
    assert ran.result["target"] == str(script.parent / "hf")
    assert ran.result["sglang"] == SLIMES_IMAGE
    assert command("preflight", path, "--args", "--num-layers 1", code=1).out.splitlines()[-1] == "not ready"


def test_options_win_over_the_file(command: Command, script: Path) -> None:
    path = config(script, args="--num-layers 35")
    command("preflight", path, code=1)
    command("preflight", path, "--args", "--num-layers 36")
    assert (
        command("preflight", path, "--args", "--num-layers 36", "--sglang-version", "0.5.9", "--json").result["sglang"]
        == "0.5.9"
    )


def test_an_option_that_names_the_last_release_wins(command: Command, script: Path) -> None:
    path = config(script, sglang_version="0.5.9")
    assert command("preflight", path, "--sglang-version", LATEST, "--json", code=None).result["sglang"] == LATEST
    assert command("preflight", path, "--json", code=None).result["sglang"] == "0.5.9"
    assert command("preflight", config(script, sglang_version=None), "--json", code=None).result["sglang"] == LATEST


@pytest.mark.parametrize("values", [{"scirpt": "x"}, {"variables": [1]}, {"args": {"a": 1}}, {"target": {}}])
def test_a_file_that_says_something_else(command: Command, script: Path, values: dict[str, Any]) -> None:
    assert command("preflight", config(script, **values), "--json", code=2).codes == ["preflight-config"]


def test_a_file_that_is_no_yaml(command: Command, script: Path) -> None:
    path = config(script)
    path.write_text("a: [")
    assert command("preflight", path, "--json", code=2).codes == ["preflight-config"]
    path.write_bytes("args: caf\xe9".encode("latin-1"))
    assert command("preflight", path, "--json", code=3).codes == ["config-unreadable"]


def test_an_index_without_its_files_is_said(command: Command, script: Path) -> None:
    """A folder on this machine; of a Hub id the weights were not asked for."""
    found = command("preflight", "--script", script, "--sglang-version", SLIMES_IMAGE, "--json")
    assert found.finding("shard-missing")["severity"] == "warning"
    (script.parent / "hf" / "model-00001-of-00001.safetensors").touch()
    found = command("preflight", "--script", script, "--sglang-version", SLIMES_IMAGE, "--json")
    assert "shard-missing" not in found.codes


@pytest.mark.parametrize("code", ["hub-gated", "hub-unreachable", "hub-not-found"])
def test_why_a_named_model_cannot_be_looked_at(code: str, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is gated, or that there is no network, is another thing than that it is not there."""

    def refused(ref: str, weights: bool = True) -> Path:
        raise error(NotFound, code, "no access", where=f"hf://{ref}", fix="do this")

    monkeypatch.setattr("ckpt_tools.launch.reading.resolve", refused)
    args = "--hf-checkpoint org/model"
    outcome = ckpt_tools.preflight(script=script, sglang_version=SLIMES_IMAGE, args=args)
    (found,) = [f for f in outcome.findings if f.code in (code, "input-not-found")]
    assert found.code == ("input-not-found" if code == "hub-not-found" else code) and found.where.startswith("--args:")
    assert outcome.result.fits is False


# --- the function


def test_the_function(script: Path) -> None:
    outcome = ckpt_tools.preflight(script=script, sglang_version=SLIMES_IMAGE)
    assert (outcome.sound, outcome.result.fits) == (True, True)
    with pytest.raises(UsageProblem):
        ckpt_tools.preflight()
    with pytest.raises(NotFound):
        ckpt_tools.preflight(target=script.parent / "nothing-here")


def test_nothing_heavy_is_loaded(script: Path) -> None:
    code = f"""
import sys, ckpt_tools
assert not [m for m in sys.modules if m.startswith("ckpt_tools.")], "import ckpt_tools loads nothing"
assert ckpt_tools.preflight(script={str(script)!r}).sound
print([m for m in ("torch", "transformers", "megatron", "numpy", "huggingface_hub") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
