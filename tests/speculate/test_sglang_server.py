"""The real sglang serving tiny models over HTTP: its counters equal ours, and `smoke --server` reads them.

Runs where `scripts/sglang_oracle.sh setup` has built its environment; a server takes about a minute to start.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.drafts.test_sglang_oracle import SCRIPT, VENV

from . import worlds
from .conftest import Clockwork

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(not any(VENV.glob(".ready-*")), reason="no sglang environment (scripts/sglang_oracle.sh setup)"),
]
STARTING = 300.0  # seconds
PROMPTS = (worlds.START, [7, 30, 4, 4, 8], [0, 39])


@contextmanager
def serving(target: Path, algorithm: str, draft: Path, log: Path, *options: object) -> Iterator[str]:
    """A server of this test's own, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [SCRIPT, "serve", target, algorithm, draft, "--port", str(port), *map(str, options)]
    with log.open("w") as stream:
        server = subprocess.Popen(words, stdout=stream, stderr=stream, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + STARTING
        while not _ready(url):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/model_info", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def world(kind: str, clockwork: Clockwork, folder: Path, sharpness: float = 1.0) -> tuple[Path, Path, str]:
    """(target, draft, algorithm); the MTP head lies in its target, with MiMo's configuration code beside it."""
    if kind == "mtp":
        target = clockwork("mimo", noise=2.5, layers=2)
        return target, target, "EAGLE"
    target = clockwork("llama")
    if kind == "eagle":
        return target, worlds.eagle(folder, target, noise=2.5), "EAGLE"
    kept = sorted({*worlds.successor(40).tolist()[::2], 1})
    return target, worlds.eagle3(folder, target, kept=kept, sharpness=sharpness), "EAGLE3"


@pytest.mark.parametrize("kind", ["mtp", "eagle", "eagle3"])
def test_the_real_server_counts_what_we_count(
    kind: str, clockwork: Clockwork, command: Command, tmp_path: Path
) -> None:
    same_counts(*world(kind, clockwork, tmp_path / "head"), command, tmp_path, "--steps", 3)


@pytest.mark.parametrize(("kind", "steps", "topk", "tokens"), [("mtp", 4, 3, 14), ("eagle3", 3, 2, 8)])
def test_the_real_server_grows_the_same_trees(
    kind: str, steps: int, topk: int, tokens: int, clockwork: Clockwork, command: Command, tmp_path: Path
) -> None:
    """Not with a head that is wholly sure: where scores are equal, SGLang may keep a child and not its parent."""
    shape = ("--steps", steps, "--topk", topk, "--draft-tokens", tokens)
    same_counts(*world(kind, clockwork, tmp_path / "head", sharpness=0.1), command, tmp_path, *shape)


def same_counts(target: Path, draft: Path, algorithm: str, command: Command, folder: Path, *shape: object) -> None:
    """One report from here, one from the server, which is not told what it drafts: the same texts, the same acceptance."""
    prompts = worlds.write_prompts(folder / "prompts.json", *PROMPTS)
    words = ("smoke", target, draft, "--prompts", prompts, "--max-new-tokens", 24, "--depths", 0, "--json")
    here = command(*words, *shape, code=None).result
    with serving(target, algorithm, draft, folder / "log", *shape) as url:
        there = command(*words, "--server", url).result
    assert there["server"] == url
    assert there["lossless"] is here["lossless"] is True
    assert [text["text"] for text in there["texts"]] == [text["text"] for text in here["texts"]]
    assert there["acceptance"] == here["acceptance"]
    assert there["setting"] == here["setting"]
    assert 0 < here["acceptance"]["accepted"] < here["acceptance"]["proposed"]
