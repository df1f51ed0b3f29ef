"""The smoke command on clockwork models: what it says of whole heads, useless ones and those that were left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.speculate.baseline import read_report
from tests.checkpoints import changed, changed_config
from tests.command import Ran
from tests.conftest import Command, Tiny

from . import worlds
from .conftest import Clockwork

V = 40
Smoke = Callable[..., Ran]


@pytest.fixture
def smoke(command: Command, tmp_path: Path) -> Smoke:
    prompts = worlds.write_prompts(tmp_path / "prompts.json", worlds.START, [7, 30, 2, 2, 8])

    def call(*words: object, new: int = 20, depths: int = 0, code: int | None = 0) -> Ran:
        usual = ("--prompts", prompts, "--max-new-tokens", new, "--depths", depths, "--json")
        return command("smoke", *words, *usual, code=code)

    return call


@pytest.fixture
def world(clockwork: Clockwork, tmp_path: Path) -> tuple[Path, Path]:
    """A target and its EAGLE-3 head."""
    target = clockwork("llama")
    return target, worlds.eagle3(tmp_path / "eagle3", target)


def test_a_right_head_is_lossless_and_wholly_accepted(world: tuple[Path, Path], smoke: Smoke) -> None:
    result = smoke(*world).result
    assert result["lossless"] is True
    acceptance = result["acceptance"]
    assert acceptance["by_position"][0] > 0.9
    assert acceptance["accept_length"] == pytest.approx(acceptance["accepted_per_step"] + 1)
    assert acceptance["by_position"] == sorted(acceptance["by_position"], reverse=True)
    assert sum(acceptance["histogram"]) == acceptance["verifications"]
    assert result["loss"]["accuracy"] > 0.9
    assert result["loss"]["cross_entropy"] < 0.2 * result["loss"]["uniform"]
    assert all(text["equal"] for text in result["texts"])


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_both_eagles_draft_the_clockwork(kind: str, clockwork: Clockwork, smoke: Smoke, tmp_path: Path) -> None:
    target = clockwork("llama")
    head = getattr(worlds, kind)(tmp_path / "head", target)
    assert smoke(target, head).result["acceptance"]["by_position"][0] > 0.9


def test_a_reduced_draft_vocabulary_maps_its_ids(clockwork: Clockwork, smoke: Smoke, tmp_path: Path) -> None:
    """Half of the tokens cannot be drafted, so at best half of the drafts are right; coverage says so."""
    target = clockwork("llama")
    head = worlds.eagle3(tmp_path / "head", target, kept=sorted(worlds.successor(V).tolist()[::2]))
    result = smoke(target, head, "--steps", 1).result
    assert 0.2 < result["acceptance"]["accept_rate"] < 0.8
    assert result["acceptance"]["accept_rate"] == pytest.approx(result["loss"]["coverage"], abs=0.2)


def test_the_targets_own_layer_is_measured_without_a_draft(clockwork: Clockwork, smoke: Smoke) -> None:
    result = smoke(clockwork("deepseek_v3", layers=2)).result
    assert (result["kind"], result["acceptance"]["accept_rate"]) == ("mtp", 1.0)


def test_a_random_head_is_called_random(tiny: Tiny, clockwork: Clockwork, smoke: Smoke) -> None:
    """C4, vocabulary 40: ln V = 3.689."""
    target = clockwork("mimo", layers=2)
    with changed(target / "model.safetensors") as tensors:
        for name in list(tensors):
            if ".mtp_layers." in name and tensors[name].dim() == 2:
                tensors[name] = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(1)) * 0.02
        tensors["model.mtp_layers.0.final_layernorm.weight"] = torch.full((64,), 0.1)  # an output layer of usual size
    ran = smoke(target, code=1)
    finding = ran.finding("head-like-random")
    assert "3.689" in finding["expected"]
    assert ran.result["lossless"] is True


def test_an_accept_length_of_one_is_an_error(clockwork: Clockwork, smoke: Smoke) -> None:
    """L1: the head says the right token one too late; nothing is accepted, and the text is right all the same."""
    target = clockwork("mimo", layers=2)
    with changed(target / "model.safetensors") as tensors:
        name = "model.mtp_layers.0.input_proj.weight"
        tensors[name] = torch.cat(tensors[name].chunk(2, 1)[::-1], 1)
    ran = smoke(target, code=1)
    assert ran.result["acceptance"]["accept_length"] == 1.0
    assert {"smoke-no-accept", "halves-swapped"} <= set(ran.codes)
    assert ran.result["lossless"] is True


def test_a_zeroed_joint_projection_is_named_before_anything_runs(world: tuple[Path, Path], smoke: Smoke) -> None:
    with changed(world[1] / "model.safetensors") as tensors:
        tensors["fc.weight"].zero_()
    ran = smoke(*world, code=1)
    assert "tensor-zero" in ran.codes
    assert ran.envelope["result"] is None


def test_a_head_of_another_width_is_named_before_anything_runs(
    world: tuple[Path, Path], clockwork: Clockwork, smoke: Smoke
) -> None:
    """L8: in plain words, and as JSON."""
    ran = smoke(clockwork("llama", hidden=32), world[1], code=1)
    assert ran.finding("hidden-size")["actual"] == "192 inputs (3x64)"


def test_a_missing_lm_head_is_an_error(world: tuple[Path, Path], smoke: Smoke) -> None:
    """G7."""
    with changed(world[1] / "model.safetensors") as tensors:
        del tensors["lm_head.weight"]
    assert "lm-head-missing" in smoke(*world, code=1).codes


def test_a_random_embedding_saved_with_the_head_is_not_used(world: tuple[Path, Path], smoke: Smoke) -> None:
    """G6: verify-draft refuses it; the server and this test take the target's."""
    with changed(world[1] / "model.safetensors") as tensors:
        tensors["embed_tokens.weight"] = torch.randn(V, 64)
    assert "embed-mismatch" in smoke(*world, code=1).codes


def test_one_layer_serves_three_steps(clockwork: Clockwork, smoke: Smoke, command: Command) -> None:
    """L6: (3, 1, 4) with one stored layer is no mistake."""
    assert "mtp-layer-reused" in smoke(clockwork("mimo", layers=2), "--steps", 3).codes


def test_more_steps_than_layers_is_a_usage_error(clockwork: Clockwork, smoke: Smoke) -> None:
    ran = smoke(clockwork("deepseek_v3", layers=2, mtp=2), "--steps", 3, code=2)
    assert ran.codes == ["steps-beyond-layers"]


def save(ran: Ran, path: Path) -> Path:
    path.write_text(ran.out)
    return path


def moved(target: Path) -> None:
    """The target's output layer is trained on: every token is followed by the one after the next."""
    with changed(target / "model.safetensors") as tensors:
        after = worlds.successor(V)
        turned = torch.empty_like(tensors["lm_head.weight"])
        turned[after] = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = turned


def test_a_head_that_stood_still_while_its_target_moved(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    baseline = save(smoke(*world), tmp_path / "before.json")
    assert smoke(*world, "--baseline", baseline).codes == smoke(*world).codes
    moved(world[0])
    ran = smoke(*world, "--baseline", baseline, code=1)
    assert "draft-frozen" in ran.codes
    assert ran.result["lossless"] is True


def test_a_worse_head_than_before(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    baseline = save(smoke(*world), tmp_path / "before.json")
    with changed(world[1] / "model.safetensors") as tensors:
        tensors["fc.weight"] += 0.3 * torch.randn(
            tensors["fc.weight"].shape, generator=torch.Generator().manual_seed(2)
        )
    ran = smoke(*world, "--baseline", baseline, code=1)
    assert {"accept-length-fell", "draft-changed"} <= set(ran.codes)
    assert "draft-frozen" not in ran.codes


def test_figures_of_another_setting_are_not_compared(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    baseline = save(smoke(*world), tmp_path / "before.json")
    assert "baseline-setting" in smoke(*world, "--steps", 2, "--baseline", baseline).codes


def test_a_baseline_that_is_none_is_not_found(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"result": {"tensors": 3}}')
    assert smoke(*world, "--baseline", tmp_path / "other.json", code=3).codes == ["report-unreadable"]


def test_depths_are_timed_and_predicted(world: tuple[Path, Path], smoke: Smoke) -> None:
    timing = smoke(*world, depths=2, code=None).result["timing"]
    assert [depth["steps"] for depth in timing["depths"]] == [1, 2]
    assert len(timing["verify"]) == 3
    assert timing["verify"][0] == pytest.approx(timing["target"])
    for depth in timing["depths"]:
        assert depth["predicted"] > 0
        assert depth["error"] == pytest.approx(depth["predicted"] / depth["measured"] - 1)
    best = max(timing["depths"], key=lambda depth: depth["measured"])
    assert timing["best_steps"] == (best["steps"] if best["measured"] > 1 else 0)


def test_sampling_is_not_compared_with_a_text(world: tuple[Path, Path], smoke: Smoke) -> None:
    for method in ("exact", "target-only"):
        result = smoke(*world, "--temperature", 1, "--method", method).result
        assert result["lossless"] is None
        assert (result["setting"]["method"], result["acceptance"]["accepted"] > 0) == (method, True)


def test_the_page_stands_alone(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    smoke(*world, "--report", page, depths=2, code=None)
    text = page.read_text()
    assert text.count("<svg") == 4
    assert 'class="accepted"' in text
    assert not any(word in text for word in ("<script", "<link", "http://", "https://", "src="))


def test_what_is_measured_goes_into_the_registry(
    world: tuple[Path, Path], smoke: Smoke, command: Command, tmp_path: Path
) -> None:
    registry = ("--registry", tmp_path / "registry")
    command("registry", "add", world[1], "--target", world[0], "--name", "clock", *registry)
    found = smoke(*world, "--register", "clock", *registry).result["acceptance"]["accept_length"]
    entry: dict[str, Any] = command("registry", "show", "clock", *registry, "--json").result["heads"][0]["entry"]
    assert entry["measured"] == {"accept_length": found, "steps": 3}


@pytest.mark.parametrize("content", ["[]", "[[5]]", '["", "b"]', "{", '[[1, "a"]]'])
def test_prompts_that_are_none(content: str, world: tuple[Path, Path], command: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(content)
    ran = command("smoke", *world, "--prompts", tmp_path / "bad.json", "--json", code=3)
    assert ran.codes == ["prompts-unreadable"]


def test_a_token_that_the_target_lacks(world: tuple[Path, Path], command: Command, tmp_path: Path) -> None:
    prompts = worlds.write_prompts(tmp_path / "p.json", [5, V])
    assert command("smoke", *world, "--prompts", prompts, "--json", code=1).codes == ["prompt-token-unknown"]


def test_cuda_is_asked_for_where_there_is_none(world: tuple[Path, Path], smoke: Smoke) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert smoke(*world, "--device", "cuda", code=2).codes == ["no-cuda"]


def test_a_target_whose_tensors_are_missing_verifies_nothing(world: tuple[Path, Path], smoke: Smoke) -> None:
    """transformers would fill the gap with fresh numbers."""
    with changed_config(world[0]) as config:
        config["num_hidden_layers"] = 9
    assert "target-incomplete" in smoke(*world, code=1).codes


def test_a_report_is_read_back(world: tuple[Path, Path], smoke: Smoke, tmp_path: Path) -> None:
    ran = smoke(*world)
    report = read_report(save(ran, tmp_path / "r.json"))
    assert json.loads(json.dumps(ran.result))["draft_hash"] == report.draft_hash
