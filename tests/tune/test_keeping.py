"""Nothing that took hours is lost: checkpoints, what lies at the destination, what could not be written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from ckpt_tools.drafts.manifest import read_manifest
from ckpt_tools.errors import CkptError, OutputExists, UsageProblem
from ckpt_tools.tune.run import Reading, tune

from .jobs import job


@pytest.mark.parametrize("state", ["out", "out/state", "out.partial/state", "link/state", "."])
def test_checkpoints_and_destination_lie_apart(
    state: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(UsageProblem, match="state-in-output"):
        tune(job(folders["eagle3"], tmp_path, state=tmp_path / state))


def test_a_head_that_another_run_has_written_stays(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    theirs = tmp_path / "out" / "model.safetensors"

    def appear(done: Any) -> None:
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("hours of work")

    with pytest.raises(OutputExists, match="output-exists"):
        tune(job(folders["eagle3"], tmp_path, rounds=1), appear)
    assert theirs.read_text() == "hours of work"


def test_what_could_not_be_written_is_written_by_the_next_run(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last round is no multiple of `save_every`; the tuned tensors do not lie in the system's temporary folder."""
    seen = []

    def full(tensors: Any, path: Path) -> None:
        seen.append(path.parent.parent)
        raise SafetensorError("No space left on device")

    wanted = job(folders["eagle3"], tmp_path, rounds=3, out=tmp_path / "new" / "out")
    with monkeypatch.context() as patched:
        patched.setattr("safetensors.torch.save_file", full)
        with pytest.raises(CkptError, match="write-failed"):
            tune(wanted)
    assert seen == [tmp_path / "new"]
    assert not list(seen[0].iterdir())
    result = tune(replace(wanted, resume=True)).result
    assert result.resumed_at == 3
    assert read_manifest(wanted.out).provenance.tuning is not None


def test_without_checkpoints_nothing_is_saved(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    tune(job(folders["eagle3"], tmp_path, rounds=1, save_every=0))
    assert not (tmp_path / "state").exists()


def test_checkpoints_are_neither_overwritten_nor_mixed_up(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    tune(job(folders["eagle3"], tmp_path, rounds=2, save_every=1))
    again = job(folders["eagle3"], tmp_path, rounds=3, out=tmp_path / "other")
    with pytest.raises(OutputExists, match="--resume"):
        tune(again)
    with pytest.raises(CkptError, match="another learning_rate"):
        tune(replace(again, resume=True, settings=replace(again.settings, learning_rate=1.0)))
    with pytest.raises(CkptError, match="another head"):
        tune(replace(again, resume=True, draft=tmp_path / "out"))
    assert len(tune(replace(again, resume=True)).result.rounds) == 3  # longer is allowed


def test_another_text_is_another_run(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    first = job(folders["eagle3"], tmp_path, rounds=1)
    tune(first)
    again = replace(first, resume=True, out=tmp_path / "other", settings=replace(first.settings, rounds=2))
    with pytest.raises(CkptError, match="another text"):
        tune(replace(again, reading=replace(first.reading, held_out=3)))
    file = tmp_path / "samples.jsonl"
    file.write_text('{"prompt_ids": [3, 4], "response_ids": [5, 6]}')
    with pytest.raises(CkptError, match="another text"):
        tune(replace(again, reading=Reading(samples=file)))
    assert tune(again).result.resumed_at == 1


def test_two_runs_do_not_share_checkpoints(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """The second is refused before it removes what the first one is writing."""
    first = job(folders["eagle3"], tmp_path, rounds=1)

    def second(done: Any) -> None:
        for resume in (False, True):
            with pytest.raises(OutputExists, match="state-busy"):
                tune(replace(first, out=tmp_path / "other", resume=resume))

    tune(first, second)
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("name", ["run.json", "progress-0.json", "model.safetensors", "optimizer.bin"])
def test_a_damaged_checkpoint_is_said_to_be_one(
    name: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    first = job(folders["eagle3"], tmp_path, rounds=1)
    tune(first)
    again = replace(first, resume=True, out=tmp_path / "other")
    file = tmp_path / "state" / "round-1" / name
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", *([b"[1]", b"{}"] if name == "progress-0.json" else [])):
        file.write_bytes(content)
        with pytest.raises(CkptError, match="state-damaged"):
            tune(again)
    file.unlink()
    with pytest.raises(CkptError, match="state-damaged"):
        tune(again)
