#!/usr/bin/env python3
"""Time what reads no weights, on public releases whose data are holes: `convert --dry-run` both ways, and `preflight`.

For each release (tests/golden) a sparse Hugging Face folder is made, and the sparse torch-dist directory that `convert` would
write of it; each command runs --repeats times in fresh processes. Printed: tensors, median wall and CPU seconds of the whole
process, and its peak of anonymous memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from os import wait4
from pathlib import Path

from bench_timing import Record, watch_memory
from make_sparse import make_sparse
from make_sparse_megatron import make_sparse_megatron

RELEASES = ["Qwen3-8B", "GLM-4.5-Air", "DeepSeek-V3"]


def run(*words: object) -> Record:
    """What one command costs in a fresh process; raises RuntimeError where it has errors."""
    stop, peak = threading.Event(), [0]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as stdout:
        child = subprocess.Popen([sys.executable, "-m", "ckpt_tools", *map(str, words), "--json"], stdout=stdout)
        watcher = threading.Thread(target=watch_memory, args=(child.pid, stop, peak))
        watcher.start()
        _, child.returncode, usage = wait4(child.pid, 0)
        wall = time.perf_counter() - start
        stop.set()
        watcher.join()
        stdout.seek(0)
        envelope = json.loads(stdout.read())
    if not envelope["ok"]:
        raise RuntimeError(envelope["findings"])
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_anon_mb": peak[0] * 1024 / 1e6}


def bench(release: str, work: Path, repeats: int) -> list[Record]:
    """Both directions of one release, and preflight of the pair."""
    hf = make_sparse(release, work / "hf")
    tensors = sum(len(json.loads(path.read_text())["weight_map"]) for path in hf.glob("*.index.json"))
    td = make_sparse_megatron(hf, work / "td")
    nbytes = sum(path.stat().st_size for path in td.rglob("*.distcp"))
    commands = {
        "to torch-dist": ("convert", "--dry-run", hf, work / "out"),
        "to hf": ("convert", "--dry-run", td, work / "out"),
        "preflight": ("preflight", "--target", hf, "--torch-dist", td),
    }
    rows = []
    for name, words in commands.items():
        runs = [run(*words) for _ in range(repeats)]
        row = {"release": release, "what": name, "hf_tensors": tensors, "nbytes": nbytes}
        row |= {cost: statistics.median(each[cost] for each in runs) for cost in ("wall_s", "cpu_s")}
        rows.append(row | {"peak_anon_mb": max(each["peak_anon_mb"] for each in runs)})
    return rows


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workdir", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for release in options.releases:
        with tempfile.TemporaryDirectory(prefix="bench_planning_", dir=options.workdir) as folder:
            rows += bench(release, Path(folder), options.repeats)
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'release':<30}{'what':<15}{'tensors':>8}{'TB':>7}{'wall s':>8}{'CPU s':>8}{'anon MB':>9}")
    for row in rows:
        numbers = f"{row['hf_tensors']:>8}{row['nbytes'] / 1e12:>7.2f}{row['wall_s']:>8.2f}{row['cpu_s']:>8.2f}"
        print(f"{row['release']:<30}{row['what']:<15}{numbers}{row['peak_anon_mb']:>9.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
