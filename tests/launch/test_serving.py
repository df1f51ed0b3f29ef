"""serve-args: the rules of slime's wizard, the forms of three servers, depth by measurement, no local path."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.drafts.speedup import speed_up
from tests.conftest import Command
from tests.convert.test_ling_and_step import CASES
from tests.drafts import heads
from tests.golden import load

from .checkpoints import write_target

WIZARD = {
    "DeepSeek-R1": (3, None),
    "GLM-4.5": (3, None),
    "GLM-4.7-Flash": (3, None),
    "MiMo-7B": (3, None),
    "Qwen3-Next-80B-A3B-Instruct": (3, None),
    "GLM-5.1": (4, "dsa"),
    "GLM-5.2": (4, "dsa"),
}


def words(lines: str) -> dict[str, str]:
    """Flags with their values, as a shell reads them."""
    found = shlex.split(lines)
    assert all(word.startswith("--") for word in found[::2])
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("name", WIZARD)
def test_the_wizard_for_a_built_in_layer(name: str, command: Command, tmp_path: Path) -> None:
    depth, backend = WIZARD[name]
    target = write_target(tmp_path / "hf", load(name).config)
    expected = {
        "--speculative-algorithm": "EAGLE",
        "--speculative-num-steps": str(depth),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": str(depth + 1),
    } | ({"--speculative-draft-attention-backend": backend} if backend else {})
    assert words(command("serve-args", target).out) == expected
    slime = words(command("serve-args", target, "--for", "slime").out)
    assert slime == {"--sglang-" + flag.removeprefix("--"): value for flag, value in expected.items()}


@pytest.fixture
def mimo(tmp_path: Path) -> Path:
    return write_target(tmp_path / "mimo", load("MiMo-7B").config)


@pytest.mark.parametrize("gamma", [1, 2, 7])
def test_a_depth_gives_its_steps_and_one_token_more(gamma: int, command: Command, mimo: Path) -> None:
    found = words(command("serve-args", mimo, "--steps", gamma).out)
    assert found["--speculative-num-steps"] == str(gamma)
    assert found["--speculative-num-draft-tokens"] == str(gamma + 1)


def test_no_depth_of_nothing(command: Command, mimo: Path) -> None:
    command("serve-args", mimo, "--steps", 0, code=2)


def test_vllm(command: Command, mimo: Path) -> None:
    found = words(command("serve-args", mimo, "--for", "vllm").out)
    assert json.loads(found["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 3}
    old = words(command("serve-args", mimo, "--for", "vllm", "--server-version", "0.10.2").out)
    assert json.loads(old["--speculative-config"])["method"] == "mimo_mtp"


@pytest.mark.parametrize("version", ["nightly", "latest"])
def test_a_version_of_vllm_has_numbers(version: str, command: Command, mimo: Path) -> None:
    ran = command("serve-args", mimo, "--for", "vllm", "--server-version", version, "--json", code=2)
    assert ran.codes == ["server-version"]


@pytest.mark.parametrize("name", ["ling", "step"])
def test_a_built_in_layer_that_vllm_has_no_class_for(name: str, command: Command, tmp_path: Path) -> None:
    target = write_target(tmp_path / "hf", CASES[name][0])
    command("serve-args", target)
    ran = command("serve-args", target, "--for", "vllm", "--json", code=1)
    assert ran.finding("draft-needed")["what"].startswith("no MTP class of vLLM")
    command("serve-args", target, "--for", "vllm", "--server-version", "0.10.2", "--json", code=2)


def test_names_follow_the_servers_release(command: Command, tmp_path: Path) -> None:
    target = write_target(tmp_path / "hf", load("GLM-5.1").config)
    backend = "--speculative-draft-attention-backend"
    assert words(command("serve-args", target, "--server-version", "0.5.9").out)[backend] == "nsa"
    ran = command("serve-args", target, "--server-version", "0.5.6", "--json")
    assert not [flag for flag in ran.result["flags"] if flag.startswith(backend)]
    assert "server-flag-unknown" in ran.codes


def test_a_target_without_layers_is_refused(command: Command, tmp_path: Path) -> None:
    ran = command("serve-args", write_target(tmp_path / "hf", load("Qwen3-8B").config), "--json", code=1)
    assert ran.envelope["result"] is None
    assert ran.finding("draft-needed")["what"].startswith("SGLang has no MTP class")


def test_a_config_alone_does_not_tell(command: Command, mimo: Path) -> None:
    ran = command("serve-args", mimo / "config.json", "--json", code=1)
    assert ran.codes == ["mtp-unknown"]


# --- a head of its own


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return heads.target(tmp_path / "target"), heads.eagle3(tmp_path / "head")


def test_a_head_of_its_own(command: Command, pair: tuple[Path, Path]) -> None:
    found = words(command("serve-args", *pair, "--with-paths").out)
    assert found["--speculative-algorithm"] == "EAGLE3"
    assert found["--speculative-draft-model-path"] == str(pair[1])
    assert found["--speculative-num-steps"] == "3"


def test_an_eagle_1_head_runs_as_eagle(command: Command, tmp_path: Path) -> None:
    target, head = heads.target(tmp_path / "target"), heads.eagle(tmp_path / "head")
    assert words(command("serve-args", target, head).out)["--speculative-algorithm"] == "EAGLE"


def test_a_head_that_does_not_fit_is_never_printed(command: Command, tmp_path: Path) -> None:
    target, head = (
        heads.target(tmp_path / "target"),
        heads.eagle(tmp_path / "head", hidden_size=6, num_attention_heads=3),
    )
    ran = command("serve-args", target, head, code=1)
    assert ran.out == ""
    assert "hidden-size" in ran.err


@pytest.mark.parametrize("form", ["sglang", "slime", "vllm"])
def test_no_local_path_unless_asked_for(form: str, command: Command, pair: tuple[Path, Path], tmp_path: Path) -> None:
    if form == "vllm":
        config = json.loads((pair[1] / "config.json").read_text())
        (pair[1] / "config.json").write_text(json.dumps(config | {"architectures": ["Eagle3LlamaForCausalLM"]}))
    for more in ((), ("--json",)):
        ran = command("serve-args", *pair, "--for", form, *more)
        assert str(tmp_path) not in ran.out
        assert "$DRAFT" in ran.out
    asked = command("serve-args", *pair, "--for", form, "--with-paths")
    assert str(pair[1]) in asked.out


# --- depth by measurement


def report(path: Path, by_position: list[float], verify: list[float], **changes: Any) -> Path:
    """What smoke prints, as far as it is read: milliseconds, verify[n] for n + 1 tokens."""
    result = {
        "kind": "mtp",
        "setting": {"device": "cuda"},
        "acceptance": {"by_position": by_position},
        "timing": {"draft": 1.0, "verify": verify, "target": 10.0, "overhead": 0.5},
    }
    path.write_text(json.dumps({"ok": True, "command": "smoke", "result": result | changes}))
    return path


def test_the_formula() -> None:
    """By hand: (2.1 + 1) / ((3 x 1 + 11 + 0.5) / 10)."""
    assert speed_up(2.1, 3, draft=1.0, verify=11.0, overhead=0.5, target=10.0) == pytest.approx(3.1 / 1.45)


def test_deeper_only_while_accepted_tokens_cover_the_draft_time(command: Command, mimo: Path, tmp_path: Path) -> None:
    """A second step accepts 0.6 more for 1.2 ms, a third 0.1 for 1.2 ms: two steps pay."""
    smoke = report(tmp_path / "smoke.json", [0.8, 0.6, 0.1, 0.05], [10.0, 10.2, 10.4, 10.6, 10.8])
    ran = command("serve-args", mimo, "--smoke", smoke, "--json")
    assert (ran.result["steps"], ran.result["chosen"]) == (2, "measured")
    assert [gain["steps"] for gain in ran.result["gains"]] == [1, 2, 3, 4]
    expected = [1.8 / 1.17, 2.4 / 1.29, 2.5 / 1.41, 2.55 / 1.53]
    assert [gain["speed_up"] for gain in ran.result["gains"]] == pytest.approx(expected)
    assert [gain["accept_length"] for gain in ran.result["gains"]] == pytest.approx([1.8, 2.4, 2.5, 2.55])
    assert words(command("serve-args", mimo, "--smoke", smoke).out)["--speculative-num-draft-tokens"] == "3"


def test_a_given_depth_wins_over_a_measured_one(command: Command, mimo: Path, tmp_path: Path) -> None:
    smoke = report(tmp_path / "smoke.json", [0.8, 0.6, 0.1], [10.0, 10.2, 10.4, 10.6])
    assert words(command("serve-args", mimo, "--smoke", smoke, "--steps", 3).out)["--speculative-num-steps"] == "3"


def test_a_head_that_does_not_pay_is_said_so(command: Command, mimo: Path, tmp_path: Path) -> None:
    smoke = report(tmp_path / "smoke.json", [0.05, 0.0], [10.0, 11.0, 12.0])
    ran = command("serve-args", mimo, "--smoke", smoke, "--json")
    assert "no-gain" in ran.codes
    good = report(tmp_path / "good.json", [0.9, 0.8], [10.0, 11.0, 12.0])
    assert "no-gain" not in command("serve-args", mimo, "--smoke", good, "--json").codes


def test_the_report_of_another_kind_of_head(command: Command, mimo: Path, tmp_path: Path) -> None:
    smoke = report(tmp_path / "smoke.json", [0.8], [10.0, 10.2], kind="eagle3")
    assert command("serve-args", mimo, "--smoke", smoke, "--json", code=1).codes == ["smoke-other-head"]


def test_the_report_of_another_head_of_the_kind(command: Command, pair: tuple[Path, Path], tmp_path: Path) -> None:
    own, other = open_draft(pair[1]).weights_hash(), "sha256:" + "0" * 64
    for stated in (own, None):
        smoke = report(tmp_path / "smoke.json", [0.8], [10.0, 10.2], kind="eagle3", draft_hash=stated)
        assert command("serve-args", *pair, "--smoke", smoke, "--json").result["chosen"] == "measured"
    smoke = report(tmp_path / "smoke.json", [0.8], [10.0, 10.2], kind="eagle3", draft_hash=other)
    ran = command("serve-args", *pair, "--smoke", smoke, "--json", code=1)
    assert ran.finding("smoke-other-head")["expected"] == own


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": None},
        {"acceptance": {}},
        {"timing": {"draft": 1}},
        {"setting": {"device": "cuda", "topk": 2}},
        {"setting": None},
        {"acceptance": {"by_position": None}},
        {"acceptance": {"by_position": "111"}},
        {"acceptance": {"by_position": [10**400]}},
        {"acceptance": {"by_position": [float("nan")]}},
        {"acceptance": {"by_position": [1.5]}},
        {"timing": {"draft": True, "verify": [1, 1], "target": 1, "overhead": 0}},
        {"timing": {"draft": 0, "verify": [0, 0], "target": 1, "overhead": 0}},
    ],
)
def test_a_report_that_does_not_tell_the_depth_of_a_chain(
    changes: dict[str, Any], command: Command, mimo: Path, tmp_path: Path
) -> None:
    smoke = report(tmp_path / "smoke.json", [0.8], [10.0, 10.2], **changes)
    assert command("serve-args", mimo, "--smoke", smoke, "--json", code=1).codes == ["smoke-report"]
