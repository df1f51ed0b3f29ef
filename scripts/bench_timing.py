"""One timed command: wall and CPU time, anonymous memory, from a warm source to a fresh destination."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

Record = dict[str, Any]

POLL_S = 0.003


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cached_part(folder: Path) -> float | None:
    """Which part of the folder's bytes is in the page cache; None without util-linux's fincore."""
    if shutil.which("fincore") is None:
        return None
    files = [str(path) for path in folder.rglob("*") if path.is_file()]
    found = subprocess.run(["fincore", "-nrbo", "RES", *files], capture_output=True, text=True, check=True)
    return min(1.0, sum(map(int, found.stdout.split())) / folder_bytes(folder))


def family_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return found


def anonymous_kib(pid: int) -> int:
    """RssAnon of a process and its descendants together; 0 of those that have just ended."""
    total = 0
    for member in family_of(pid):
        with contextlib.suppress(OSError):
            found = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{member}/status").read_text())
            total += sum(map(int, found))
    return total


def watch_memory(pid: int, stop: threading.Event, peak: list[int]) -> None:
    """Keep the largest `anonymous_kib` in ``peak[0]`` until told to stop."""
    while not stop.wait(POLL_S):
        peak[0] = max(peak[0], anonymous_kib(pid))


def timed(command: list[str], source: Path, target: Path, ours: bool) -> Record:
    """Run one command to the fresh ``target``; its standard error is shown; raises RuntimeError when it fails.

    Before it, untimed, dirty pages are written back, the source is copied to the destination and that copy is deleted.
    """
    os.sync()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    shutil.rmtree(target)
    run: Record = {"source_cached": cached_part(source)}
    stop, peak = threading.Event(), [0]
    with tempfile.TemporaryFile("w+") as stdout:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=stdout)
        watcher = threading.Thread(target=watch_memory, args=(child.pid, stop, peak))
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        run |= {"wall_s": time.perf_counter() - start, "cpu_s": usage.ru_utime + usage.ru_stime}
        stop.set()
        watcher.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} exited with {child.returncode}")
        stdout.seek(0)
        timing = json.loads(stdout.read())["result"]["timing"] if ours else {}
    run |= {name: timing.get(name) for name in ("write_s", "write_cpu_s")}
    return run | {"peak_anon_mb": peak[0] * 1024 / 1e6}
