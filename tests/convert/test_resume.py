"""A conversion that was interrupted goes on where it stopped, with the same bytes; or says why it does not."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.convert import Options, convert
from ckpt_tools.convert import writing as writing_module
from ckpt_tools.engine import execute as execute_module
from ckpt_tools.engine import program as program_module
from ckpt_tools.errors import CkptError, ExitCode, OutputExists
from tests.checkpoints import tree
from tests.conftest import Command, Tiny

THREADS = 2
KILLED = -9


def killed(source: Path, target: Path, kills: list[int], **options: Any) -> list[list[int]]:
    """[exit status, tasks begun] of every run."""
    words = ["-m", "tests.convert.killing", source, target, json.dumps(options), json.dumps(kills)]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    runs: list[list[int]] = json.loads(done.stdout)
    return runs


def written(target: Path) -> dict[str, bytes]:
    """The output, without the journal that a run leaves which died between its last rename and the end."""
    return {name: data for name, data in tree(target).items() if not name.startswith(".journal/")}


CASES: dict[str, tuple[str, bool, int, dict[str, Any]]] = {
    "to torch-dist": ("glm4_moe", False, 3, {}),
    "to Hugging Face": ("mimo", True, 5, {"max_shard_size": 20_000}),
    "with a cast": ("qwen3", False, 1, {"dtype": "F32"}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_killed_anywhere_and_run_again_gives_the_bytes_of_an_undisturbed_run(
    case: str, shared_tiny: Tiny, tmp_path: Path
) -> None:
    """A task is done again only if it was in the hands of a thread when the process died."""
    family, back, tries, options = CASES[case]
    source = shared_tiny(family)
    if back:
        convert(source, tmp_path / "td", Options())
        source = tmp_path / "td"
    ((status, total),) = killed(source, tmp_path / "undisturbed", [], **options)
    assert (status, total > 100) == (0, True)
    drawn = random.Random(case)
    for attempt in range(tries):
        target = tmp_path / f"target{attempt}"
        kills = [drawn.randrange(20, total * 2 // 3) for _ in range(8)]
        runs = killed(source, target, kills, **options)
        assert [status for status, _ in runs[:-1]] == [KILLED] * (len(runs) - 1)
        assert runs[-1][0] == 0 or (runs[-1][0], target.exists()) == (KILLED, True)
        assert sum(tasks for _, tasks in runs) <= total + THREADS * len(runs)
        assert (written if runs[-1][0] == KILLED else tree)(target) == tree(tmp_path / "undisturbed")
        assert not target.with_name(f"{target.name}.partial").exists()


def test_killed_at_every_call_near_the_beginning_and_the_end(shared_tiny: Tiny, tmp_path: Path) -> None:
    """Where directories, the journal and the final name are made; a run that died after the rename left a whole output."""
    source, target = shared_tiny("llama"), tmp_path / "target"
    ((_, total),) = killed(source, tmp_path / "undisturbed", [])
    wanted = tree(tmp_path / "undisturbed")
    beginning = killed(source, tmp_path / "first", list(range(20)))
    assert len(beginning) == 21
    assert tree(tmp_path / "first") == wanted
    runs = killed(source, target, [2 * total + 2])
    for kill in range(5, 80):
        if runs[-1][0] == 0 or target.exists():
            break
        runs = killed(source, target, [kill])[:1]
    assert target.exists()
    assert written(target) == wanted


@pytest.fixture
def begun(shared_tiny: Tiny, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A source of this test's own whose conversion to tmp_path / "td" stopped after some tasks."""

    def make(problem: BaseException | None = None, **options: Any) -> Path:
        source, tasks = tiny("llama"), [0]
        run = execute_module._Worker.run

        def failing(self: Any, task: Any) -> int:
            tasks[0] += 1
            if tasks[0] > 5:
                raise problem or KeyboardInterrupt
            return run(self, task)

        with monkeypatch.context() as patch:
            patch.setattr(program_module, "SMALL", 64)
            patch.setattr(program_module, "GATHER", 512)
            patch.setattr(execute_module._Worker, "run", failing)
            with pytest.raises((KeyboardInterrupt, SystemExit, CkptError)):
                convert(source, tmp_path / "td", Options(**options))
        monkeypatch.setattr(program_module, "SMALL", 64)
        monkeypatch.setattr(program_module, "GATHER", 512)
        assert (tmp_path / "td.partial/.journal/plan.json").is_file()
        assert not (tmp_path / "td").exists()
        return source

    return make


def undisturbed(source: Path, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    convert(source, tmp_path / "fresh", Options(**options))
    return tree(tmp_path / "fresh")


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(1), OSError(errno.ENOSPC, "No space left")])
def test_an_interrupt_and_a_full_disk_keep_what_is_written(
    problem: BaseException, begun: Callable[..., Path], tmp_path: Path
) -> None:
    source = begun(problem)
    found = convert(source, tmp_path / "td", Options())
    assert 0 < found.result.resumed < found.result.nbytes
    assert tree(tmp_path / "td") == undisturbed(source, tmp_path)


def test_the_user_is_told_how_to_go_on(command: Command, begun: Callable[..., Path], tmp_path: Path) -> None:
    source = begun()
    ran = command("convert", source, tmp_path / "td", "--verify")
    assert "continued" in ran.out and "were there from an interrupted run" in ran.out


def test_an_interrupt_says_how_to_go_on(
    command: Command, shared_tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing_module, "finish", stopped)
    ran = command("convert", shared_tiny("llama"), tmp_path / "td", code=130)
    assert f"it continues with {tmp_path}/td.partial" in ran.err


def test_a_failure_that_no_second_run_can_cure_leaves_nothing(
    shared_tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(writing_module, "finish", broken)
    with pytest.raises(RuntimeError):
        convert(shared_tiny("llama"), tmp_path / "td", Options())
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_changes_while_it_is_read(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run would mix two states; nothing is left of it."""
    source, run = tiny("llama"), execute_module._Worker.run

    def changing(self: Any, task: Any) -> int:
        touched(source / "model.safetensors")
        return run(self, task)

    monkeypatch.setattr(execute_module._Worker, "run", changing)
    with pytest.raises(CkptError) as caught:
        convert(source, tmp_path / "td", Options())
    assert caught.value.findings[0].code == "source-changed"
    assert not list(tmp_path.glob("td*"))


def refusal(source: Path, target: Path, **options: Any) -> Any:
    before = tree(target.with_name(f"{target.name}.partial"))
    with pytest.raises(OutputExists) as caught:
        convert(source, target, Options(**options))
    assert caught.value.exit_code == ExitCode.OUTPUT_EXISTS
    assert tree(target.with_name(f"{target.name}.partial")) == before  # nothing was touched
    (finding,) = caught.value.findings
    assert "--overwrite" in finding.fix and str(target) + ".partial" in finding.fix
    return finding


def test_another_plan_refuses(begun: Callable[..., Path], tmp_path: Path) -> None:
    source = begun()
    assert refusal(source, tmp_path / "td", dtype="F32").code == "resume-other-plan"
    assert refusal(source, tmp_path / "td", make_vocab_size_divisible_by=512).code == "resume-other-plan"


def test_another_source_of_the_same_shape_refuses(begun: Callable[..., Path], tiny: Tiny, tmp_path: Path) -> None:
    begun()
    assert refusal(tiny("llama", seed=3), tmp_path / "td").code == "resume-other-plan"


def touched(path: Path) -> None:
    os.utime(path, (1, 1))


def grown(path: Path) -> None:
    """A header of another length; the time of modification is put back."""
    before, data = path.stat(), path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    path.write_bytes((length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed(path: Path) -> None:
    """The header's metadata in another spelling of the same length; size and time stay."""
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b'"format":"pt"', b'"format":"np"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.read_bytes() != data and path.stat().st_size == len(data)


@pytest.mark.parametrize("change", [touched, grown, renamed])
def test_a_changed_source_refuses(change: Callable[[Path], None], begun: Callable[..., Path], tmp_path: Path) -> None:
    source = begun()
    change(source / "model.safetensors")
    finding = refusal(source, tmp_path / "td")
    assert finding.code == "resume-source-changed"
    assert str(source / "model.safetensors") in finding.expected
    convert(source, tmp_path / "td", Options(overwrite=True))
    assert tree(tmp_path / "td") == undisturbed(source, tmp_path)


def test_options_that_change_no_byte_of_the_program_continue(begun: Callable[..., Path], tmp_path: Path) -> None:
    source = begun()
    found = convert(source, tmp_path / "td", Options(verify=True)).result
    assert found.resumed > 0 and found.verified


@pytest.mark.parametrize("damage", ["no plan", "cut plan", "a file less", "a shorter file"])
def test_a_partial_that_cannot_be_trusted_is_begun_again(
    damage: str, begun: Callable[..., Path], tmp_path: Path
) -> None:
    source, partial = begun(), tmp_path / "td.partial"
    if damage == "no plan":
        (partial / ".journal/plan.json").unlink()
    if damage == "cut plan":
        (partial / ".journal/plan.json").write_text('{"plan": "')
    if damage == "a file less":
        (partial / "release/__0_0.distcp").unlink()
    if damage == "a shorter file":
        os.truncate(partial / "release/__0_0.distcp", 100)
    assert convert(source, tmp_path / "td", Options()).result.resumed == 0
    assert tree(tmp_path / "td") == undisturbed(source, tmp_path)


def test_after_a_crash_of_the_machine_only_what_was_flushed_counts(begun: Callable[..., Path], tmp_path: Path) -> None:
    """Marks of another boot are those of a machine that went down: here none of them was flushed."""
    source, partial = begun(), tmp_path / "td.partial"
    (marks,) = (partial / ".journal").glob("marks-*")
    marks.rename(marks.with_name("marks-of-an-earlier-boot-0"))
    data = (partial / "release/__0_0.distcp").stat().st_size
    (partial / "release/__0_0.distcp").write_bytes(bytes(data))  # the bytes never reached the disk
    assert convert(source, tmp_path / "td", Options()).result.resumed == 0
    assert tree(tmp_path / "td") == undisturbed(source, tmp_path)
