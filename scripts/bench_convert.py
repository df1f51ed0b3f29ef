#!/usr/bin/env python3
"""Time ``ckpt-tools convert`` against ``cp`` on a synthetic model, both directions, interleaved.

Each repeat: ``cp -r`` of the HF folder, ``convert`` HF to torch-dist, ``cp -r`` of the torch-dist folder, ``convert``
torch-dist to HF, each to a fresh destination; a ratio is formed within one such pair. Before each timed run, untimed:
dirty pages are written back, and the source is copied to the destination and that copy deleted. So the source is in
the page cache and every run writes to memory freed a moment ago; in a virtual machine a copy into memory not lately
touched takes several times longer, which would fall on some of the four steps only. CPU is user + system; memory is the
peak of RssAnon of the process. cp does not flush to disk; where the tool does, its wall time includes that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench_models import FAMILIES, make_model

Record = dict[str, Any]

MEASURES = ("write_s", "write_cpu_s", "wall_s", "cpu_s")
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


def watch_memory(pid: int, stop: threading.Event, peak: list[int]) -> None:
    """Keep the largest RssAnon (KiB) of a process in ``peak[0]`` until told to stop."""
    while not stop.wait(POLL_S):
        with contextlib.suppress(OSError):  # the process may just have ended
            found = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            peak[0] = max(peak[0], *map(int, found)) if found else peak[0]


def timed(step: str, command: list[str], source: Path, target: Path) -> Record:
    """Run one command to a fresh destination; its standard error is shown; raises when it fails."""
    os.sync()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    shutil.rmtree(target)
    run: Record = {"step": step, "source_cached": cached_part(source)}
    stop, peak = threading.Event(), [0]
    with tempfile.TemporaryFile("w+") as stdout:
        start = time.perf_counter()
        child = subprocess.Popen([*command, str(source), str(target)], stdout=stdout)
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
        timing = {} if command[0] == "cp" else json.loads(stdout.read())["result"]["timing"]
    run |= {name: timing.get(name) for name in ("write_s", "write_cpu_s", "total_s")}
    return run | {"peak_anon_mb": peak[0] * 1024 / 1e6}


def one_repeat(tool: list[str], work: Path) -> list[Record]:
    """The four timed runs of one repeat; only the HF source is left behind."""
    hf, td, copy, back = (work / name for name in ("hf", "td", "copy", "hf2"))
    steps = (("cp_hf", hf, copy), ("hf_to_td", hf, td), ("cp_td", td, copy), ("td_to_hf", td, back))
    runs: list[Record] = []
    for step, source, target in steps:
        runs.append(timed(step, ["cp", "-r", "--reflink=never"] if step.startswith("cp") else tool, source, target))
        if target is not td:
            shutil.rmtree(target)
    shutil.rmtree(td)
    return runs


def compare(direction: str, measure: str, pairs: list[tuple[Record, Record]]) -> Record:
    """Median, min and max of the ratios within (cp, tool) pairs; median None where the tool reports no such figure."""
    base = "cpu_s" if "cpu" in measure else "wall_s"
    copied, spent = [cp[base] for cp, _ in pairs], [tool[measure] for _, tool in pairs]
    peak = max(tool["peak_anon_mb"] for _, tool in pairs)
    row: Record = {"direction": direction, "measure": measure, "median": None, "peak_anon_mb": peak}
    if None in spent:
        return row
    ratios = [mine / max(cp, 1e-9) for mine, cp in zip(spent, copied, strict=True)]
    row |= {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return row | {"tool_s": statistics.median(spent), "cp_s": statistics.median(copied)}


def summarise(repeats: list[list[Record]]) -> list[Record]:
    """All rows: both directions, writing phase and whole process, wall and CPU."""
    pairs = {"hf_to_td": [(runs[0], runs[1]) for runs in repeats], "td_to_hf": [(runs[2], runs[3]) for runs in repeats]}
    return [compare(way, name, found) for way, found in pairs.items() for name in MEASURES]


def print_table(report: Record) -> None:
    """The report for people."""
    cached = report["source_cached_min"]
    warm = "unknown (no fincore)" if cached is None else f"at least {cached:.0%} of its bytes"
    print(f"{report['family']}, {report['bytes'] / 1e9:.2f} GB, {report['repeats']} repeats on {report['file_system']}")
    print(f"each source copied once before its timed run; then in the page cache: {warm}")
    print(f"{'direction':<10}{'measure':<13}{'x cp':>7}{'min..max':>14}{'tool s':>9}{'cp s':>9}{'peak anon MB':>14}")
    for row in report["summary"]:
        numbers = "  not reported by the tool"
        if row["median"] is not None:
            numbers = f"{row['median']:>7.2f}{row['min']:>7.2f}..{row['max']:<5.2f}"
            numbers += f"{row['tool_s']:>9.2f}{row['cp_s']:>9.2f}{row['peak_anon_mb']:>14.0f}"
        print(f"{row['direction']:<10}{row['measure']:<13}{numbers}")


def bench(family: str, size: int, fp8: bool, repeats: int, work: Path, tool: list[str]) -> Record:
    """Make the model in ``work`` and measure."""
    make_model(family, size, work / "hf", fp8)
    runs = [one_repeat(tool, work) for _ in range(repeats)]
    cached = [run["source_cached"] for repeat in runs for run in repeat]
    kind = subprocess.run(["df", "--output=fstype", str(work)], capture_output=True, text=True, check=True)
    report: Record = {
        "family": family + (" fp8" if fp8 else ""),
        "bytes": folder_bytes(work / "hf"),
        "repeats": repeats,
    }
    report |= {"file_system": kind.stdout.split()[-1], "source_cached_min": None if None in cached else min(cached)}
    return report | {"summary": summarise(runs), "runs": runs}


def gigabytes(text: str) -> int:
    """Bytes of a size such as 5GB or 0.5GB."""
    return int(float(text.upper().removesuffix("GB")) * 1e9)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Time ckpt-tools convert against cp.")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen3")
    parser.add_argument("--size", type=gigabytes, default="1GB", help="e.g. 5GB; three times that is needed on disk")
    parser.add_argument("--fp8", action="store_true", help="a block-fp8 source; torch-dist is bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workdir", type=Path, help="where a new folder is made; default: the system's temp folder")
    parser.add_argument("--keep", action="store_true", help="leave the folder in place")
    parser.add_argument("--tool", default=str(Path(sys.executable).with_name("ckpt-tools")))
    parser.add_argument("--json", action="store_true", help="print one JSON object, every run included")
    options = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp(prefix="bench_convert_", dir=options.workdir))
    try:
        report = bench(
            options.family, options.size, options.fp8, options.repeats, work, [options.tool, "convert", "--json"]
        )
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(f"bench_convert: {error}", file=sys.stderr)
        return 1
    finally:
        print(f"kept {work}", file=sys.stderr) if options.keep else shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(report, indent=2)) if options.json else print_table(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
