"""The kernel, the disk and the user fail under a running program: same bytes by another way, or one clear error."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.engine import execute as execute_module
from ckpt_tools.engine.execute import execute
from ckpt_tools.engine.files import KEPT, PAGE, Handles
from ckpt_tools.engine.moves import Move
from ckpt_tools.engine.output import output_directory
from ckpt_tools.engine.program import SMALL, Program
from ckpt_tools.errors import CkptError
from ckpt_tools.stores.base import Image

SIZE = 3 * SMALL + 3 * PAGE  # in the target, tensors begin at page boundaries that are no boundaries of 64 KiB
FALLBACKS = [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM]
Primitive = Callable[..., int]


def plain(tmp_path: Path, count: int = 4, start: int = PAGE) -> Program:
    """`count` large copies, each from byte `start` of its own source file, into one target, in reverse order."""
    moves = []
    for n in range(count):
        (tmp_path / f"in-{n}").write_bytes(os.urandom(start + SIZE))
        at = (count - 1 - n) * SIZE
        moves.append(Move(n, start, SIZE, 0, at, SIZE, SIZE, 1, None, SIZE))
    return Program([tmp_path / f"in-{n}" for n in range(count)], Image([("t", count * SIZE)], [], {}), moves)


def expected(program: Program) -> bytes:
    return b"".join(path.read_bytes()[-SIZE:] for path in reversed(program.sources))


def raising(number: int) -> Primitive:
    def primitive(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return primitive


def shortened(original: Callable[..., int], length_at: int) -> Primitive:
    """At most 1000 bytes a call."""

    def primitive(*arguments: Any) -> int:
        values = list(arguments)
        values[length_at] = min(1000, values[length_at])
        return original(*values)

    return primitive


@pytest.mark.parametrize("number", FALLBACKS)
@pytest.mark.parametrize("sendfile", [True, False])
def test_fallbacks_give_the_same_bytes(
    number: int, sendfile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    real = os.sendfile

    def counted(*arguments: Any) -> int:
        sent.append(real(*arguments))
        return sent[-1]

    monkeypatch.setattr(os, "copy_file_range", raising(number))
    monkeypatch.setattr(os, "sendfile", counted if sendfile else raising(errno.EINVAL))
    program = plain(tmp_path)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected(program)
    assert sum(sent) == 4 * SIZE * sendfile


@pytest.mark.parametrize("start", [1, 1000, PAGE + 1])
def test_bytes_that_change_their_place_in_a_page_never_splice(
    start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for primitive in ("copy_file_range", "sendfile"):
        monkeypatch.setattr(os, primitive, raising(errno.EIO))
    program = plain(tmp_path, start=start)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected(program)


@pytest.mark.parametrize("broken", ["copy_file_range", "sendfile", "preadv", "pwrite"])
def test_short_counts_are_continued(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken != "copy_file_range":
        monkeypatch.setattr(os, "copy_file_range", raising(errno.EXDEV))
    if broken in ("preadv", "pwrite"):
        monkeypatch.setattr(os, "sendfile", raising(errno.EINVAL))
    real = getattr(os, broken)
    short: dict[str, Primitive] = {
        "copy_file_range": shortened(real, 2),
        "sendfile": shortened(real, 3),
        "preadv": lambda handle, views, at: real(handle, [views[0][:1000]], at),
        "pwrite": lambda handle, view, at: real(handle, view[:1000], at),
    }
    monkeypatch.setattr(os, broken, short[broken])
    program = plain(tmp_path, 2)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected(program)


@pytest.mark.parametrize("silent", [["copy_file_range"], ["copy_file_range", "sendfile"]])
def test_a_file_system_that_copies_nothing_and_calls_it_success(
    silent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for primitive in silent:
        monkeypatch.setattr(os, primitive, lambda *_: 0)
    program = plain(tmp_path)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected(program)


def test_a_write_that_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    program = plain(tmp_path, start=1)
    with pytest.raises(OSError, match="nothing was written"):
        execute(program, tmp_path / "out")


def test_a_fallback_in_mid_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.copy_file_range, [0]

    def sometimes(source: int, target: int, length: int, *offsets: int) -> int:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise OSError(errno.EXDEV, "now and then")
        return real(source, target, min(length, 5000), *offsets)

    monkeypatch.setattr(os, "copy_file_range", sometimes)
    program = plain(tmp_path)
    execute(program, tmp_path / "out")
    assert (tmp_path / "out/t").read_bytes() == expected(program)


@pytest.mark.parametrize("way", ["copy_file_range", "sendfile", "buffer", "gather", "strided"])
def test_a_source_that_became_shorter(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of reading meets the end of file and says so; the output is gone."""
    program = plain(tmp_path, 1)
    if way in ("sendfile", "buffer"):
        monkeypatch.setattr(os, "copy_file_range", raising(errno.EXDEV))
    if way == "buffer":
        monkeypatch.setattr(os, "sendfile", raising(errno.EINVAL))
    if way == "gather":
        program.moves[:] = [Move(0, SIZE - 99, 100, 0, 0, 100, 100, 1, None, 100)]
    if way == "strided":
        program.moves[:] = [Move(0, 1, SIZE // 2, 0, 0, 100, 50, 2, None, 50)]
    os.truncate(program.sources[0], SIZE // 2)
    with pytest.raises(CkptError) as caught, output_directory(tmp_path / "target", program.nbytes) as partial:
        execute(program, partial)
    finding = caught.value.findings[0]
    assert finding.code == "source-changed"
    assert finding.where == str(program.sources[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-0"]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_one_failing_thread_stops_the_others(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute_module, "THREADS", 3)
    program, lock, started = plain(tmp_path, 60), threading.Lock(), [0]
    failed = threading.Event()
    run = execute_module._Worker.run

    def failing(self: Any, task: Any) -> int:
        with lock:
            started[0] += 1
            first = started[0] == 3
        if first:
            failed.set()
            raise kind("stop")
        failed.wait(5)  # the others are at work when it happens
        return run(self, task)

    monkeypatch.setattr(execute_module._Worker, "run", failing)
    before = threading.active_count()
    with pytest.raises(kind, match="stop"), output_directory(tmp_path / "target", program.nbytes) as partial:
        execute(program, partial)
    assert started[0] < 15
    assert threading.active_count() == before
    assert not list(tmp_path.glob("target*"))


def test_an_interrupt_while_the_main_thread_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, done = plain(tmp_path, 40), [0]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def slow(_: int) -> None:
        done[0] += 1
        threading.Event().wait(0.05)

    monkeypatch.setattr(execute_module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), output_directory(tmp_path / "target", program.nbytes) as partial:
        execute(program, partial, slow)
    assert done[0] < 10
    assert not list(tmp_path.glob("target*"))


def test_a_failing_progress_callback_is_not_swallowed(tmp_path: Path) -> None:
    def broken(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(plain(tmp_path), tmp_path / "out", broken)


def test_handles_are_bounded_and_closed(tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(KEPT + 40)]
    for path in paths:
        path.write_bytes(path.name.encode())
    before = len(list(Path("/proc/self/fd").iterdir()))
    handles = Handles(paths, os.O_RDONLY)
    for number in (*range(len(paths)), 0, 5):
        assert os.pread(handles[number], 9, 0) == str(number).encode()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + KEPT
    handles.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
