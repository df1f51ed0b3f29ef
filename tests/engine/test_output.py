"""The destination: refused, finished or gone, never half there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.journal import Journal, Stamp
from ckpt_tools.engine.output import SLACK, check_target, output_directory, partial_of
from ckpt_tools.engine.program import Program
from ckpt_tools.errors import CkptError, ExitCode, OutputExists, UsageProblem
from ckpt_tools.stores.base import Image, Literal


def recognised(path: Path) -> bool:
    return (path / "weights").exists()


def always(_: Path) -> bool:
    return True


def checkpoint(path: Path, content: str = "old") -> Path:
    path.mkdir(parents=True)
    (path / "weights").write_text(content)
    return path


def code_of(work: Callable[[], Any]) -> str:
    with pytest.raises(CkptError) as caught:
        work()
    return caught.value.findings[0].code


def names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def test_success_renames_and_leaves_nothing_else(tmp_path: Path) -> None:
    with output_directory(tmp_path / "a/b/target", 10) as partial:
        assert partial == tmp_path / "a/b/target.partial"
        (partial / "weights").write_text("new")
        assert not (tmp_path / "a/b/target").exists()
    assert names(tmp_path / "a/b") == ["target"]
    assert (tmp_path / "a/b/target/weights").read_text() == "new"


def test_an_empty_directory_is_a_fine_destination(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    check_target(tmp_path / "source", tmp_path / "target", False, recognised)
    with output_directory(tmp_path / "target", 10) as partial:
        (partial / "weights").write_text("new")
    assert names(tmp_path / "target") == ["weights"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("kind", ["checkpoint", "directory", "file"])
def test_only_checkpoints_are_overwritten_and_only_on_request(kind: str, overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if kind == "checkpoint":
        checkpoint(target)
    elif kind == "directory":
        target.mkdir()
        (target / "thesis.tex").write_text("years of work")
    else:
        target.write_text("a file")
    if kind == "checkpoint" and overwrite:
        check_target(tmp_path / "source", target, overwrite, recognised)
        return
    with pytest.raises(OutputExists) as caught:
        check_target(tmp_path / "source", target, overwrite, recognised)
    assert caught.value.exit_code == ExitCode.OUTPUT_EXISTS
    assert ("--overwrite" in caught.value.findings[0].fix) == (kind == "checkpoint")


def test_overwriting_replaces_everything_when_done(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "target")
    with output_directory(target, 10, None, True, recognised) as partial:
        (partial / "other").write_text("new")
        assert (target / "weights").read_text() == "old"
    assert names(target) == ["other"]
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("kind", ["weights", "thesis.tex"])
def test_what_came_in_the_meantime_is_judged_again(kind: str, overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"

    def write() -> None:
        with output_directory(target, 10, None, overwrite, recognised) as partial:
            (partial / "weights").write_text("new")
            target.mkdir()
            (target / kind).write_text("old")

    if kind == "weights" and overwrite:
        write()
        assert (target / "weights").read_text() == "new"
    else:
        assert code_of(write) == "output-exists"
        assert (target / kind).read_text() == "old"
    assert names(tmp_path) == ["target"]


def test_a_conversion_that_finds_its_place_taken_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    journal = Journal(partial_of(target), Stamp("plan", 0, []), [])
    with pytest.raises(OutputExists), output_directory(target, 10, journal) as partial:
        journal.begun = True
        (partial / "weights").write_text("new")
        checkpoint(target)
    assert (partial / "weights").read_text() == "new"
    assert (target / "weights").read_text() == "old"


def test_a_failed_overwrite_keeps_the_old_one(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "target")
    with pytest.raises(RuntimeError), output_directory(target, 10) as partial:
        (partial / "weights").write_text("half")
        raise RuntimeError
    assert (target / "weights").read_text() == "old"
    assert names(tmp_path) == ["target"]


def test_overwriting_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    real = checkpoint(tmp_path / "disk/real")
    (tmp_path / "link").symlink_to(real)
    with output_directory(tmp_path / "link", 10, None, True, recognised) as partial:
        (partial / "weights").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (real / "weights").read_text() == "new"
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["real"]


def test_an_empty_working_directory_as_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with output_directory(Path(), 10) as partial:
        (partial / "weights").write_text("new")
    assert names(tmp_path / "here") == ["weights"]


@pytest.mark.parametrize(
    ("source", "target"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a", "c/../a/b"), ("link", "a/x")]
)
def test_source_and_destination_never_contain_each_other(source: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(UsageProblem) as caught:
        check_target(tmp_path / source, tmp_path / target, True, always)
    assert caught.value.findings[0].code == "output-in-source"


def test_neighbours_with_a_common_prefix_do_not_contain_each_other(tmp_path: Path) -> None:
    check_target(tmp_path / "model", tmp_path / "model-2", False, always)


def usage(free: int) -> Callable[[Any], Any]:
    return lambda path: shutil._ntuple_diskusage(free, 0, free)  # type: ignore[attr-defined]


def test_a_full_disk_is_refused_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []
    monkeypatch.setattr(shutil, "disk_usage", usage(1000 + SLACK - 1))
    with pytest.raises(CkptError) as caught, output_directory(tmp_path / "new/target", 1000):
        entered.append(True)
    finding = caught.value.findings[0]
    assert finding.code == "disk-full"
    assert (f"{1000 + SLACK:,}" in finding.expected, f"{999 + SLACK:,}" in finding.actual) == (True, True)
    assert not entered
    assert names(tmp_path) == []
    monkeypatch.setattr(shutil, "disk_usage", usage(1000 + SLACK))
    with output_directory(tmp_path / "new/target", 1000):
        entered.append(True)
    assert entered


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_fills_in_mid_write(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, [0]

    def full(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] > 3:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    literals = [Literal(0, 2 * n, b"x") for n in range(10)]
    program = Program([], Image([("t", 100)], literals, {}), [])
    target = checkpoint(tmp_path / "target")

    def work() -> None:
        with output_directory(target, program.nbytes) as partial:
            execute(program, partial)

    assert code_of(work) == "disk-full"
    assert names(tmp_path) == ["target"]
    assert names(target) == ["weights"]


def test_another_failure_to_write_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def work() -> None:
        with output_directory(tmp_path / "target", 10):
            raise OSError(errno.EIO, "I/O error", "/dev/broken")

    with pytest.raises(CkptError) as caught:
        work()
    finding = caught.value.findings[0]
    assert (finding.code, finding.where) == ("write-failed", "/dev/broken")
    assert "space" not in finding.fix
    assert names(tmp_path) == []


CHILD = """
import os, resource, sys, time
from pathlib import Path
from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.journal import Journal, Stamp
from ckpt_tools.engine.moves import Move
from ckpt_tools.engine.output import output_directory
from ckpt_tools.engine.program import Program
from ckpt_tools.stores.base import Image

how, root = sys.argv[1], Path(sys.argv[2])
size = 1 << 20
source = root / "source"
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
if how == "slow":
    copy = os.copy_file_range
    def slow(*arguments):
        os.write(1, b"copying\\n")
        time.sleep(0.2)
        return copy(arguments[0], arguments[1], min(arguments[2], 1 << 16), *arguments[3:])
    os.copy_file_range = slow
moves = [Move(0, 0, size, 0, n * size, size, size, 1, None, size) for n in range(4)]
program = Program([source], Image([("weights", 4 * size)], [], {}), moves)
with output_directory(root / "target", program.nbytes) as partial:
    execute(program, partial)
"""


def child(how: str, root: Path) -> subprocess.Popen[str]:
    (root / "source").write_bytes(os.urandom(1 << 20))
    command = [sys.executable, "-c", CHILD, how, str(root)]
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    process = child("limit", tmp_path)
    assert "disk-full" in process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert names(tmp_path) == ["source"]


@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGKILL, ["source", "target.partial"]), (signal.SIGINT, ["source"])]
)
def test_a_killed_run_never_looks_finished(number: signal.Signals, left: list[str], tmp_path: Path) -> None:
    process = child("slow", tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "copying\n"
    time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert names(tmp_path) == left
    again = child("plain", tmp_path)
    assert again.communicate(timeout=30)[1] == ""
    assert names(tmp_path) == ["source", "target"]
    assert (tmp_path / "target/weights").read_bytes() == 4 * (tmp_path / "source").read_bytes()


def test_an_old_partial_is_replaced(tmp_path: Path) -> None:
    old = checkpoint(partial_of(tmp_path / "target"))
    (old / "left-over").write_text("from a killed run")
    with output_directory(tmp_path / "target", 10) as partial:
        assert names(partial) == []
        (partial / "weights").write_text("new")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["weights"]


def test_two_runs_do_not_share_a_destination(tmp_path: Path) -> None:
    with output_directory(tmp_path / "target", 10) as partial:
        (partial / "weights").write_text("mine")
        with pytest.raises(OutputExists) as caught, output_directory(tmp_path / "target", 10):
            pass
        assert caught.value.findings[0].code == "output-busy"
        assert names(partial) == ["weights"]
    assert (tmp_path / "target/weights").read_text() == "mine"
