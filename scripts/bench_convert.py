#!/usr/bin/env python3
"""Time ``ckpt-tools convert`` against ``cp`` and others on a synthetic model, both directions, interleaved.

Each repeat, from the HF folder: ``cp -r``, ``convert`` to torch-dist, then those asked for: the do-it-yourself way
(``--diy``, scripts/bench_diy.py), the same conversion by two ranks (``--ranks 2``) and peers; then the same from the
torch-dist folder; their order is drawn anew for each repeat. A ratio is formed within one repeat, to ``cp`` of the same
files. Every command writes to a fresh destination. Before each, untimed: dirty pages are written back, and the source is
copied to the destination and that copy deleted. So the source is in the page cache and every run writes to memory freed a
moment ago; in a virtual machine a copy into memory not lately touched takes several times longer, which would fall on some
of the steps only. CPU is user + system of the command and all its children; memory is the peak of their RssAnon together.
cp does not flush to disk; where a tool does, its wall time includes that.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench_models import FAMILIES, make_model
from bench_timing import Record, folder_bytes, timed

MEASURES = ("write_s", "write_cpu_s", "wall_s", "cpu_s")
TO, BACK = "hf_to_td", "td_to_hf"
CP, OURS = "cp", "ckpt-tools"
SOURCE, TARGET = "{source}", "{target}"
DIY = str(Path(__file__).with_name("bench_diy.py"))


class Way(NamedTuple):
    """One command under test; ``words`` hold the places of source and target."""

    name: str
    words: list[str]
    ours: bool = False

    def command(self, source: Path, target: Path) -> list[str]:
        return [word.replace(SOURCE, str(source)).replace(TARGET, str(target)) for word in self.words]


def ways(options: argparse.Namespace, direction: str) -> Iterator[Way]:
    """What is timed in one direction."""
    yield Way(CP, ["cp", "-r", "--reflink=never", SOURCE, TARGET])
    yield Way(OURS, [options.tool, "convert", "--json", SOURCE, TARGET], ours=True)
    if options.ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
        words = [*launcher, "-m", "ckpt_tools", "convert", "--json", SOURCE, TARGET]
        yield Way(f"{options.ranks} ranks", words, ours=True)
    if options.diy:
        yield Way(
            "do it yourself", [sys.executable, DIY, "to-torch-dist" if direction == TO else "to-hf", SOURCE, TARGET]
        )
    for text in options.peer if direction == TO else options.peer_back:
        name, _, line = text.partition("=")
        yield Way(name, shlex.split(line))


def one_repeat(options: argparse.Namespace, work: Path) -> list[Record]:
    """Every way once, both directions; only the HF source is left behind."""
    hf, td, other = (work / name for name in ("hf", "td", "other"))
    runs: list[Record] = []
    for direction, source in ((TO, hf), (BACK, td)):
        every = list(ways(options, direction))
        for way in random.sample(every, len(every)):
            target = td if (direction, way.name) == (TO, OURS) else other
            run = timed(way.command(source, target), source, target, way.ours)
            runs.append({"direction": direction, "way": way.name} | run)
            if target is other:
                shutil.rmtree(other)
    shutil.rmtree(td)
    return runs


def row_of(direction: str, name: str, repeats: list[list[Record]]) -> Record:
    """Median, min and max of the ratios to cp within repeats, per measure; a tool may not report its writing phase."""
    found = [{run["way"]: run for run in runs if run["direction"] == direction} for runs in repeats]
    row: Record = {"direction": direction, "way": name}
    row["peak_anon_mb"] = max(runs[name]["peak_anon_mb"] for runs in found)
    for measure in MEASURES:
        spent = [runs[name][measure] for runs in found]
        if None in spent:
            row[measure] = None
            continue
        base = [runs[CP]["cpu_s" if "cpu" in measure else "wall_s"] for runs in found]
        ratios = [mine / max(cp, 1e-9) for mine, cp in zip(spent, base, strict=True)]
        row[measure] = {"ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        row[measure] |= {"s": statistics.median(spent), "cp_s": statistics.median(base)}
    return row


def bench(options: argparse.Namespace, size: int, work: Path) -> Record:
    """Make the model in ``work`` and measure."""
    make_model(options.family, size, work / "hf", options.fp8)
    repeats = [one_repeat(options, work) for _ in range(options.repeats)]
    cached = [run["source_cached"] for runs in repeats for run in runs]
    kind = subprocess.run(["df", "--output=fstype", str(work)], capture_output=True, text=True, check=True)
    report: Record = {
        "family": options.family + (" fp8" if options.fp8 else ""),
        "bytes": folder_bytes(work / "hf"),
        "repeats": options.repeats,
        "file_system": kind.stdout.split()[-1],
        "source_cached_min": None if None in cached else min(cached),
    }
    report["summary"] = [
        row_of(direction, way.name, repeats)
        for direction in (TO, BACK)
        for way in ways(options, direction)
        if way.name != CP
    ]
    return report | {"runs": [run for runs in repeats for run in runs]}


def print_table(report: Record) -> None:
    """The report for people."""
    cached = report["source_cached_min"]
    warm = "unknown (no fincore)" if cached is None else f"at least {cached:.0%} of its bytes"
    size = report["bytes"] / 1e9
    print(f"{report['family']}, {size:.2f} GB, {report['repeats']} repeats on {report['file_system']}")
    print(f"each source copied once before its timed run; then in the page cache: {warm}")
    print(
        f"{'direction':<10}{'way':<16}{'measure':<13}{'x cp':>7}{'min..max':>15}{'s':>8}{'cp s':>8}{'anon MB':>9}{'x size':>8}"
    )
    for row in report["summary"]:
        for measure in MEASURES:
            if row[measure] is None:
                continue
            cell, memory = row[measure], row["peak_anon_mb"]
            numbers = (
                f"{cell['ratio']:>7.2f}{cell['min']:>8.2f}..{cell['max']:<5.2f}{cell['s']:>8.2f}{cell['cp_s']:>8.2f}"
            )
            memory = f"{memory:>9.0f}{memory / 1e3 / size:>8.2f}"
            print(f"{row['direction']:<10}{row['way']:<16}{measure:<13}{numbers}{memory}")


def gigabytes(text: str) -> int:
    """Bytes of a size such as 5GB or 0.5GB."""
    return int(float(text.upper().removesuffix("GB")) * 1e9)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen3")
    parser.add_argument("--size", type=gigabytes, default="1GB", help="e.g. 5GB; three times that is needed on disk")
    parser.add_argument("--curve", help="several sizes, as 0.5GB,2GB,8GB; one report for each")
    parser.add_argument("--fp8", action="store_true", help="a block-fp8 source; torch-dist is bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workdir", type=Path, help="where a new folder is made; default: the system's temp folder")
    parser.add_argument("--keep", action="store_true", help="leave the folder in place")
    parser.add_argument("--tool", default=str(Path(sys.executable).with_name("ckpt-tools")))
    parser.add_argument("--diy", action="store_true", help="time load with safetensors, save with torch DCP, and back")
    parser.add_argument("--ranks", type=int, default=1, help="time that many ranks of one conversion as well")
    peer = {"action": "append", "default": [], "metavar": "NAME=COMMAND"}
    parser.add_argument("--peer", **peer, help=f"another converter to torch-dist; {SOURCE} and {TARGET} are replaced")
    parser.add_argument("--peer-back", **peer, help="another converter from our torch-dist directory")
    parser.add_argument("--json", action="store_true", help="print a JSON list of reports, every run included")
    options = parser.parse_args(argv)
    for text in (*options.peer, *options.peer_back):
        if "=" not in text or SOURCE not in text or TARGET not in text:
            parser.error(f"{text!r} is not NAME=COMMAND with {SOURCE} and {TARGET}")
    return options


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parsed(argv)
    sizes = [gigabytes(text) for text in options.curve.split(",")] if options.curve else [options.size]
    reports = []
    for size in sizes:
        work = Path(tempfile.mkdtemp(prefix="bench_convert_", dir=options.workdir))
        try:
            reports.append(bench(options, size, work))
        except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            print(f"bench_convert: {error}", file=sys.stderr)
            return 1
        finally:
            print(f"kept {work}", file=sys.stderr) if options.keep else shutil.rmtree(work, ignore_errors=True)
        if not options.json:
            print_table(reports[-1])
    if options.json:
        print(json.dumps(reports, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
