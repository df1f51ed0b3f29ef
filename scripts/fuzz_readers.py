#!/usr/bin/env python3
"""Fuzz one reader of checkpoints with atheris (coverage-guided): fuzz_readers.py READER [libFuzzer options].

READER is one of tests/hostile/readers.py; `--list` prints them. Needs `pip install atheris` (not part of any extra: it has
wheels for few Pythons). The corpus starts with the sound file. Any exception but a refusal, a file outside of the destination
or more than 2 GiB of memory is a crash; `-max_total_time=600` ends after ten minutes.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import atheris

with atheris.instrument_imports(include=["ckpt_tools", "json"]):
    from tests.hostile.readers import NAMES, readers

MEMORY = 2 << 30


def main() -> None:
    if sys.argv[1:2] == ["--list"] or not sys.argv[1:] or sys.argv[1] not in NAMES:
        print("\n".join(NAMES))
        sys.exit(2 * (sys.argv[1:2] != ["--list"]))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        reader = readers(Path(folder) / "checkpoints")[sys.argv[1]]
        seed = reader.seed
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        (corpus / "sound").write_bytes(seed)
        options = [f"-max_len={len(seed) + 4096}", *sys.argv[2:]]
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: reader.read(data, seed) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
