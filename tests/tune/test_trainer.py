"""Tuning as a whole, on tiny pairs: the head learns, the target stands still, runs resume, several processes agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from ckpt_tools.drafts.export import Options as Writing
from ckpt_tools.drafts.manifest import read_manifest
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from ckpt_tools.speculate.build import build_head
from ckpt_tools.tune import run as runs
from ckpt_tools.tune import trainer as trainers
from ckpt_tools.tune.run import Reading, tune
from ckpt_tools.tune.samples import Sample
from ckpt_tools.tune.student import Student
from ckpt_tools.tune.trainer import Source, Trainer, nth
from ckpt_tools.tune.tuned import FILE, digest, tuned_spec

from .heads import KINDS, loaded
from .jobs import PROMPT_IDS, QUICK, job, prompts_in

ROOT = Path(__file__).resolve().parents[2]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("kind", ["mtp", "eagle", "eagle3"])
def test_a_head_learns_and_the_target_stands_still(
    kind: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    target, head = folders[kind]
    files = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    found = tune(job(folders[kind], tmp_path)).result
    assert found.rounds[-1].losses[0] < found.rounds[0].losses[0] - 0.1
    assert found.target_unchanged
    assert files == {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    before, after = open_draft(head), open_draft(tmp_path / "out")
    assert before.tensors.keys() >= after.tensors.keys() - {"fc.bias"}
    written = tensors(tmp_path / "out")
    moved = {
        name
        for name in after.tensors
        if name in before.tensors and after.tensors[name].read() != before.tensors[name].read()
    }
    integers = {name for name, tensor in written.items() if not tensor.is_floating_point()}
    assert moved == after.tensors.keys() - integers - {"fc.bias"}
    assert {after.tensors[name].dtype for name in moved} == {before.tensors[name].dtype for name in moved}


def test_what_cannot_be_written_is_not_tuned(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's MiMoMTP holds one layer; nothing is loaded before that is said."""
    monkeypatch.setattr(runs, "load_target", None)
    with pytest.raises(CkptError, match="mtp-layers-several"):
        tune(job(folders["mtp2"], tmp_path))


def test_two_layers_learn_each_their_own_step(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    target, head = loaded("mtp2", tmp_path)
    student = Student(head.float().requires_grad_(True), steps=3)
    trainer = Trainer(Accelerator(cpu=True), target, loaded_again(target), QUICK, Source(PROMPT_IDS), student)
    trainer.run(None, lambda done: None)
    first, last = trainer.history[0], trainer.history[-1]
    assert len(first.losses) == 2
    assert all(b < a - 0.05 for a, b in zip(first.losses, last.losses, strict=True))


def loaded_again(target: Any) -> Any:
    return build_head(open_draft(target.facts.root), target)


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_the_manifest_says_how_it_was_trained(kind: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    found = tune(job(folders[kind], tmp_path, writing=Writing(identity={"weights_hash": "x"}))).result
    manifest = read_manifest(tmp_path / "out")
    assert manifest.provenance.trained
    tuning = manifest.provenance.tuning
    assert tuning is not None
    assert (tuning.rounds, tuning.updates) == (4, 24)
    assert tuning.tokens == sum(done.tokens for done in found.rounds) > 0
    assert found.after is not None
    assert tuning.accept_length_after == found.after.accept_length
    assert manifest.target.identity == {"weights_hash": "x"}


class Stopped(Exception):
    pass


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_resumed_run_ends_with_the_same_bits(
    kind: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Killed in round 3, after the checkpoint of round 2; the run samples, so that seeds matter too."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    tune(job(folders[kind], whole, temperature=1.0))

    def stop(done: Any) -> None:
        if done.number == 3:
            raise Stopped

    with pytest.raises(Stopped):
        tune(job(folders[kind], broken, temperature=1.0), stop)
    assert not (broken / "out").exists()
    assert [path.name for path in (broken / "state").glob("round-*")] == ["round-2"]
    result = tune(job(folders[kind], broken, temperature=1.0, resume=True)).result
    assert result.resumed_at == 2
    assert [done.number for done in result.rounds] == [1, 2, 3, 4]
    assert {n: t.tolist() for n, t in tensors(whole / "out").items()} == {
        n: t.tolist() for n, t in tensors(broken / "out").items()
    }


def test_given_samples_are_learned_without_generating(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "roll_out", None)
    file = tmp_path / "samples.jsonl"
    rows: list[dict[str, Any]] = [{"prompt_ids": [3, 4, 5], "response_ids": [7, 8, 15, 20, 31, 32]}]
    rows += [{"prompt": "w3 w4", "response": "w7 w8 w15 w20"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = tune(job(folders["eagle3"], tmp_path, reading=Reading(samples=file))).result
    assert found.rounds[0].accept_length is None
    assert found.rounds[-1].losses[0] < found.rounds[0].losses[0] - 0.1


def leak(sample: Sample, target: Any) -> None:
    with torch.no_grad():
        target.model.lm_head.weight[0, 0] += 1


def test_a_target_that_moves_is_noticed(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = trainers.features

    def leaking(target: Any, boundaries: Any, sample: Sample) -> torch.Tensor:
        leak(sample, target)
        return original(target, boundaries, sample)

    monkeypatch.setattr(trainers, "features", leaking)
    with pytest.raises(CkptError, match="target-moved"):
        tune(job(folders["eagle3"], tmp_path, rounds=1))
    assert not (tmp_path / "out").exists()


def test_a_digest_sees_a_single_bit() -> None:
    module = nn.Linear(3, 3)
    module.register_buffer("scale", torch.tensor(1.0))
    before = digest(module)
    assert digest(module) == before
    module.bias.data.view(torch.int32)[1] ^= 1
    assert digest(module) != before


def test_a_head_that_has_not_moved_is_written_as_it_was(tmp_path: Path) -> None:
    """Through fp32 and back no bit is lost."""
    for kind in KINDS:
        base = tmp_path / kind
        base.mkdir()
        target, head = loaded(kind, base)
        spec = open_draft(target.facts.root if kind.startswith("mtp") else base / "head")
        tuned = tuned_spec(spec, head.float(), base)
        assert (base / FILE).is_file()
        assert {n: e.read() for n, e in tuned.tensors.items()} == {n: e.read() for n, e in spec.tensors.items()}


def test_every_pass_over_the_prompts_has_every_prompt_once() -> None:
    order = [nth(i, 5, seed=1) for i in range(15)]
    assert sorted(order[:5]) == sorted(order[5:10]) == sorted(order[10:]) == [0, 1, 2, 3, 4]
    assert order[:5] != order[5:10]


@pytest.mark.slow
def test_two_processes_tune_one_head(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """torchrun, gloo: both generate and learn, one writes, and what it writes is the head of both."""
    target, head = folders["eagle3"]
    script = "from ckpt_tools.cli import main; main()"
    (tmp_path / "run.py").write_text(script)
    words = [str(tmp_path / "run.py"), "tune-draft", target, head, tmp_path / "out", "--prompts", prompts_in(tmp_path)]
    words += ["--held-out", 2, "--rounds", 2, "--updates", 2, "--prompts-per-round", 2, "--max-new-tokens", 8]
    words += ["--device", "cpu", "--save-every", 1, "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [*torchrun, *map(str, words)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)["result"]
    assert result["processes"] == 2
    assert result["target_unchanged"]
    assert len(result["rounds"]) == 2
    assert open_draft(tmp_path / "out").kind == "eagle3"
    states = sorted(path.name for path in (tmp_path / "out.tuning" / "round-2").glob("progress-*.json"))
    assert states == ["progress-0.json", "progress-1.json"]
    kept = [json.loads((tmp_path / "out.tuning" / "round-2" / name).read_text())["kept"] for name in states]
    assert kept[0] != kept[1]  # each process had prompts of its own
