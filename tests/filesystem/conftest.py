"""Places on other devices, and a process whose permissions count even where the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SHM = Path("/dev/shm")
POWERS = "-dac_override,-dac_read_search"  # what lets root read and write what its mode forbids
Unprivileged = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder on tmpfs, another device than `tmp_path`."""
    if not SHM.is_dir() or SHM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second device: /dev/shm is absent, or the tests run on it")
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        yield Path(folder)


@pytest.fixture
def unprivileged() -> Unprivileged:
    """Run `ckpt-tools WORDS` as somebody for whom file modes count."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything, and there is no setpriv to give that up")
        prefix = ["setpriv", f"--bounding-set={POWERS}", f"--inh-caps={POWERS}", "--"]

    def call(*words: object) -> subprocess.CompletedProcess[str]:
        line = [*prefix, sys.executable, "-m", "ckpt_tools", *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)

    return call
