"""drift: what survives is the ratio of what is accepted, the divergence is the textbook's, and the advice follows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from make_tiny import make_tiny
from safetensors.torch import load_file, save_file
from torch.nn import functional

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from ckpt_tools.speculate.counters import counted
from ckpt_tools.speculate.results import Acceptance, acceptance
from ckpt_tools.speculate.target import load_target
from ckpt_tools.tune.drift import EXTRACT, KEEP, TUNE, Options, advise, divergence, drift, share, spread
from ckpt_tools.tune.run import Job, Reading, tune
from ckpt_tools.tune.samples import Sample

from ..conftest import Command
from .heads import pair
from .test_trainer import QUICK, prompts_in


def moved(folder: Path, out: Path, size: float) -> Path:
    """The target with noise on its decoder, of `size` times every matrix's own spread."""
    shutil.copytree(folder, out)
    file, noise = out / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(file)
    for name, tensor in sorted(tensors.items()):
        if ".layers." in name and tensor.dim() == 2:
            tensors[name] = tensor + size * tensor.std() * torch.randn(tensor.shape, generator=noise)
    save_file(tensors, file, {"format": "pt"})
    return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a head that was tuned for it until it accepts something, and the target moved a little and far."""
    base = tmp_path_factory.mktemp("drift")
    target, head = pair("mtp", base)
    reading = Reading(prompts=str(prompts_in(base)))
    settings = replace(QUICK, rounds=15, save_every=0, prompts=9, replay=1, batch=9)
    tune(Job(target, head, base / "tuned", reading, settings, device="cpu"))
    return {
        "a": target,
        "head": base / "tuned",
        "near": moved(target, base / "near", 3e-3),
        "far": moved(target, base / "far", 0.7),
        "prompts": prompts_in(base),
    }


def measured(world: dict[str, Path], to: str) -> Any:
    options = Options(prompts=str(world["prompts"]), new_tokens=12)
    return drift(world["a"], world[to], world["head"], options).result


def test_a_target_that_hardly_moved_keeps_its_head(world: dict[str, Path]) -> None:
    found = measured(world, "near")
    assert found.a.accept_length > 1.3
    assert found.survived == pytest.approx(found.b.accepted_per_step / found.a.accepted_per_step)
    assert found.survived > 0.95
    assert (found.advice, found.steps) == (KEEP, 3)
    assert 0 < found.divergence.b_from_a < 1e-3
    assert found.divergence.agreement > 0.95


def test_a_target_that_moved_far_needs_tuning(world: dict[str, Path]) -> None:
    found = measured(world, "far")
    assert found.survived < 0.6
    assert found.advice == TUNE
    assert found.divergence.b_from_a > 0.01
    assert found.divergence.tokens == found.b.tokens
    assert found.own is not None  # the moved target carries the layer that the head was tuned from


def test_a_better_layer_inside_the_moved_target_is_taken_out(world: dict[str, Path], tmp_path: Path) -> None:
    """Training that took the MTP layer along: B is A with the tuned layer inside, and the head given is the old one."""
    shutil.copytree(world["a"], tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    tensors |= load_file(next(world["head"].glob("*.safetensors")))
    save_file(tensors, tmp_path / "b" / "model.safetensors", {"format": "pt"})
    options = Options(prompts=str(world["prompts"]), new_tokens=12)
    stale = moved_head(world["head"], tmp_path / "stale")
    found = drift(world["a"], tmp_path / "b", stale, options).result
    assert found.advice == EXTRACT
    assert found.own is not None
    assert found.own.accept_length > found.b.accept_length


def moved_head(head: Path, out: Path) -> Path:
    """A head that accepts less than it did, but not nothing."""
    shutil.copytree(head, out)
    file = next(out.glob("*.safetensors"))
    tensors, noise = load_file(file), torch.Generator().manual_seed(1)
    tensors = {
        n: t + 0.6 * t.std() * torch.randn(t.shape, generator=noise) if t.dim() == 2 else t for n, t in tensors.items()
    }
    save_file(tensors, file, {"format": "pt"})
    return out


def test_the_divergence_is_torchs_own(world: dict[str, Path]) -> None:
    a, b = load_target(world["a"]), load_target(world["far"])
    samples = [Sample((5, 7, 9, 11, 13, 8), 3), Sample((4, 6, 8), 1)]
    found = divergence(a, b, samples)
    forward, backward, same, count = 0.0, 0.0, 0, 0
    for sample in samples:
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            p, q = (target.model(ids).logits[0, sample.prompt - 1 : -1].log_softmax(-1) for target in (a, b))
        forward += float(functional.kl_div(q, p, reduction="sum", log_target=True))
        backward += float(functional.kl_div(p, q, reduction="sum", log_target=True))
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        count += len(p)
    assert found.tokens == count == 5
    assert found.a_from_b == pytest.approx(forward / count, rel=1e-4)
    assert found.b_from_a == pytest.approx(backward / count, rel=1e-4)
    assert found.agreement == same / count


def of(*accepted: int) -> Acceptance:
    return acceptance(counted(3, accepted))


def test_the_error_is_that_of_a_ratio_of_means() -> None:
    """Against the spread over many simulated pairs of runs."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])

    def runs() -> list[Acceptance]:
        drawn = torch.multinomial(weights, 200 * 300, replacement=True, generator=generator).view(300, 200)
        return [of(*row) for row in drawn.tolist()]

    ratios, errors = zip(*(share(b, a) for a, b in zip(runs(), runs(), strict=True)), strict=True)
    assert sum(errors) / len(errors) == pytest.approx(float(torch.tensor(ratios).std()), rel=0.15)
    assert spread(of(1, 1, 1)) == 0


@pytest.mark.parametrize(("survived", "expected"), [(0.95, KEEP), (0.9, KEEP), (0.89, TUNE), (0.0, TUNE)])
def test_the_advice_follows_what_survives(survived: float, expected: str) -> None:
    assert advise(survived, of(1, 0, 1), None)[0] == expected


def test_own_layers_within_noise_are_no_reason() -> None:
    assert advise(0.95, of(1, 0, 1, 0), of(1, 1, 1, 0))[0] == KEEP
    assert advise(0.95, of(*[0, 1] * 50), of(*[2, 3] * 50))[0] == EXTRACT


def test_a_head_that_a_accepts_nothing_of_is_refused(tmp_path: Path) -> None:
    target, head = pair("eagle", tmp_path)
    with pytest.raises(CkptError, match="head-accepts-nothing"):
        drift(target, target, head, Options(prompts=str(prompts_in(tmp_path)), new_tokens=6))


def test_a_head_of_another_width_is_refused_for_either_target(world: dict[str, Path], tmp_path: Path) -> None:
    other = make_tiny("mimo", tmp_path / "wide", layers=3, mtp=1, hidden=64, vocab=64, ffn=48)
    for first, second in ((world["a"], other), (other, world["a"])):
        with pytest.raises(CkptError, match="hidden-size"):
            drift(first, second, world["head"], Options(prompts=str(world["prompts"])))


def test_the_command_says_what_to_do(world: dict[str, Path], command: Command) -> None:
    words = ["drift", world["a"], world["far"], world["head"], "--prompts", world["prompts"], "--max-new-tokens", 12]
    result = command(*words, "--json").envelope["result"]
    assert result["advice"] == TUNE
    assert len(result["b"]["by_position"]) == 3
    assert "advice" in command(*words).out
    assert open_draft(world["head"]).kind == result["kind"]
