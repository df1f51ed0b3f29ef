"""The journal: what is marked, flushed, trusted and compared."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.engine import journal as journal_module
from ckpt_tools.engine.codecs import Decode, Encode, Stored, Take
from ckpt_tools.engine.execute import Share, execute
from ckpt_tools.engine.journal import Journal, stamp_of
from ckpt_tools.engine.moves import Cast, Move
from ckpt_tools.engine.program import Program, Quantise, files_of
from ckpt_tools.stores.base import Chunk, Literal, Tensor
from tests.engine.test_failures import expected, plain


def journal_for(program: Program, root: Path) -> tuple[Journal, list[Any]]:
    tasks = list(enumerate(program.tasks()))
    files = [(root / name, size) for name, size in program.image.files]
    return Journal(root, stamp_of(program, (task for _, task in tasks)), files), tasks


def test_flushed_tasks_survive_another_boot_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = plain(tmp_path)
    first, tasks = journal_for(program, tmp_path / "out")
    first.begin()
    first.open()
    with first.settling():
        execute(program, tmp_path / "out", None, Share(tasks[:2], first.mark))
        first.settle()
        execute(program, tmp_path / "out", None, Share(tasks[2:3], first.mark))
    same, _ = journal_for(program, tmp_path / "out")
    assert same.continues()
    same.open()
    assert list(same.done) == [1, 1, 1, 0]
    monkeypatch.setattr(journal_module, "boot", lambda: "another")
    later, _ = journal_for(program, tmp_path / "out")
    later.open()
    assert list(later.done) == [1, 1, 0, 0]
    later.open(1, boots=[Path("/proc/sys/kernel/random/boot_id").read_text().strip()])
    assert list(later.done) == [1, 1, 1, 0]


def test_data_is_flushed_before_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    program = plain(tmp_path)
    journal, tasks = journal_for(program, tmp_path / "out")
    journal.begin()
    journal.open()
    sync, write = os.fsync, os.pwrite

    def synced(handle: int) -> None:
        events.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    def put(handle: int, data: bytes, at: int) -> int:
        if Path(f"/proc/self/fd/{handle}").readlink().parent.name == ".journal":
            events.append(f"mark {data[0]} of {at}")
        return write(handle, data, at)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "pwrite", put)
    execute(program, tmp_path / "out", None, Share(tasks[:1], journal.mark))
    journal.settle()
    marks = next(name for name in events if name.startswith("marks-"))
    assert events[0] == "mark 1 of 0"
    assert set(events[1:5]) == {"t", "out", "plan.json", ".journal"}
    assert events[5:] == ["mark 2 of 0", marks]


def test_a_disk_that_fails_while_flushing_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(journal_module, "SETTLE_S", 0.01)
    monkeypatch.setattr(os, "fsync", failing)
    program = plain(tmp_path)
    journal, tasks = journal_for(program, tmp_path / "out")
    journal.begin()
    journal.open()
    with pytest.raises(OSError, match="gone"), journal.settling():
        execute(program, tmp_path / "out", lambda _: time.sleep(0.1), Share(tasks, journal.mark))


def test_what_the_disk_did_not_take_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system takes bytes and says at fsync that it had no room: marks that say otherwise would keep holes."""
    program = plain(tmp_path)
    journal, tasks = journal_for(program, tmp_path / "out")
    journal.begin()
    journal.open()

    def full(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name == "t":
            raise OSError(errno.ENOSPC, "No space left on device")

    def work(late: int) -> None:
        with journal.settling():
            execute(program, tmp_path / "out", None, Share(tasks[:2], journal.mark))
            if late:
                journal.settle()
            monkeypatch.setattr(os, "fsync", full)
            execute(program, tmp_path / "out", None, Share(tasks[2:3], journal.mark))
            raise OSError(errno.ENOSPC, "as close said")

    for late in (0, 2):
        with pytest.raises(OSError, match="as close said"):
            work(late)
        monkeypatch.undo()
        again, _ = journal_for(program, tmp_path / "out")
        again.open()
        assert list(again.done) == [late > 0, late > 0, 0, 0]
        journal.open()


def test_an_error_of_the_system_flushes_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = plain(tmp_path)
    journal, tasks = journal_for(program, tmp_path / "out")
    journal.begin()
    journal.open()
    with pytest.raises(OSError, match="gone"), journal.settling():
        execute(program, tmp_path / "out", None, Share(tasks[:2], journal.mark))
        raise OSError(errno.EIO, "gone")
    monkeypatch.setattr(journal_module, "boot", lambda: "another")
    later, _ = journal_for(program, tmp_path / "out")
    later.open()
    assert list(later.done) == [1, 1, 0, 0]


def test_flushing_along_the_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SETTLE_S", 0.001)
    program = plain(tmp_path, 30)
    journal, tasks = journal_for(program, tmp_path / "out")
    journal.begin()
    journal.open()
    with journal.settling():
        execute(program, tmp_path / "out", lambda _: time.sleep(0.002), Share(tasks, journal.mark))
    assert (tmp_path / "out/t").read_bytes() == expected(program)
    (marks,) = (tmp_path / "out/.journal").glob("marks-*")
    assert set(marks.read_bytes()) <= {1, 2} and 2 in marks.read_bytes()


def test_the_plan_is_the_same_in_every_process_and_changes_with_any_task(tmp_path: Path) -> None:
    program = plain(tmp_path)
    here = stamp_of(program, program.tasks()).plan
    code = (
        "import sys; from pathlib import Path; from ckpt_tools.engine.journal import stamp_of\n"
        "from ckpt_tools.engine.moves import Move; from ckpt_tools.engine.program import Program\n"
        "from ckpt_tools.stores.base import Image; from tests.engine.test_failures import PAGE, SIZE\n"
        "moves = [Move(n, PAGE, SIZE, 0, (3 - n) * SIZE, SIZE, SIZE, 1, None, SIZE) for n in range(4)]\n"
        "paths = [Path(sys.argv[1]) / f'in-{n}' for n in range(4)]\n"
        "program = Program(paths, Image([('t', 4 * SIZE)], [], {}), moves)\n"
        "print(stamp_of(program, program.tasks()).plan)"
    )
    for seed in ("1", "2"):
        words = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(words, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True)
        assert done.stdout.strip() == here, done.stderr
    changes = [{name: getattr(program.moves[2], name) + 1} for name in Move._fields if name != "cast"]
    plans = {here}
    for change in [*changes, {"cast": Cast("F16", "BF16")}, {"cast": Cast("F16", "BF16", 1.0)}]:
        other = Program(program.sources, program.image, list(program.moves))
        other.moves[2] = other.moves[2]._replace(**change)
        plans.add(stamp_of(other, program.tasks()).plan)
    for literal in (Literal(0, 0, b"x"), Literal(0, 0, b"y"), Literal(0, 1, b"x"), Literal(1, 0, b"x")):
        plans.add(stamp_of(replace(program, image=replace(program.image, literals=[literal])), program.tasks()).plan)
    plans.add(stamp_of(program, list(program.tasks())[1:]).plan)
    assert len(plans) == 1 + len(Move._fields) + 1 + 4 + 1


def test_every_kind_of_task_names_the_files_that_it_writes() -> None:
    tensor = Tensor("w", "BF16", (2, 2), ())
    stored = Stored("transposed", "BF16", 7, 0, (2, 2))
    takes = (Take(0, 1, 1, 3, 0), Take(1, 2, 1, 4, 0))
    chunks = Chunk(1, 0, (0, 0), (2, 2)), Chunk(2, 0, (0, 0), (1, 1))
    assert files_of(Decode(stored, "BF16", takes, 4)) == {3, 4}
    assert files_of(Encode(tensor, [], 0, 2, 2, 5, 0)) == {5}
    assert files_of(Quantise(tensor, [], *chunks, (128, 128))) == {1, 2}
