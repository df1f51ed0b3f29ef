#!/usr/bin/env python3
"""Fuzz one reader of checkpoints with atheris (coverage-guided): fuzz_readers.py READER CPU_MINUTES [libFuzzer options].

READER is one of tests/hostile/readers.py; `--list` prints them. Needs `pip install atheris` (not part of any extra: it has
wheels for few Pythons). The corpus starts with the sound file. Any exception but a refusal, a file outside of the destination
or more than 2 GiB of memory is a crash: its input is left in the working directory, and the exit status is not 0. Otherwise
the last line says, as JSON, for how long it ran, how many inputs were read and how they were answered.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import atheris

with atheris.instrument_imports(include=["ckpt_tools", "json"]):
    from tests.hostile.readers import NAMES, Reader, readers

MEMORY = 2 << 30


class Watched:
    """A reader that counts its answers and ends the process when its CPU time is spent."""

    def __init__(self, name: str, reader: Reader, minutes: float, folder: Path) -> None:
        self.name, self.reader, self.seed, self.folder = name, reader, reader.seed, folder
        self.until = time.process_time() + 60 * minutes
        self.minutes = minutes
        self.answers: Counter[str] = Counter()

    def __call__(self, data: bytes) -> None:
        self.answers[self.reader.read(data, self.seed) or "understood"] += 1
        if time.process_time() >= self.until:
            done = {"reader": self.name, "cpu_minutes": self.minutes, "inputs": self.answers.total()}
            print(json.dumps(done | {"answers": dict(self.answers.most_common())}), flush=True)
            shutil.rmtree(self.folder)
            os._exit(0)


def main() -> None:
    if sys.argv[1:2] == ["--list"] or len(sys.argv) < 3 or sys.argv[1] not in NAMES:
        print("\n".join(NAMES))
        sys.exit(2 * (sys.argv[1:2] != ["--list"]))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    name, minutes, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        reader = readers(Path(folder) / "checkpoints")[name]
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        (corpus / "sound").write_bytes(reader.seed)
        watched = Watched(name, reader, float(minutes), Path(folder))
        atheris.Setup([sys.argv[0], f"-max_len={len(reader.seed) + 4096}", *options, str(corpus)], watched)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
