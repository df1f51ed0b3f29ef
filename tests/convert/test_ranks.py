"""Several ranks write what one process writes, and fail with one voice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import pytest
import torch
import torch.distributed.rendezvous

from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import program as program_module
from tests.checkpoints import tree
from tests.conftest import Tiny
from tests.convert import one_rank
from tests.convert.one_rank import LIMITS

SHARDS = ("--max-shard-size", "20000")
LIMIT = 90


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(rank: int, size: int, port: int, address: str = "127.0.0.1") -> dict[str, str]:
    """What torchrun sets; the fault hits the last rank."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "FAULT_RANK": size - 1}
    return {name: str(value) for name, value in values.items()} | {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


class Started(NamedTuple):
    pid: int
    out: IO[bytes]
    err: IO[bytes]

    def end(self) -> Ended:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for stream in (self.out, self.err):
            stream.seek(0)
        return Ended(code, self.out.read().decode(), self.err.read().decode())


def start(words: tuple[object, ...], fault: str, environment: dict[str, str]) -> Started:
    """A rank in a fork of this process, which has loaded torch already."""
    started = Started(0, TemporaryFile(), TemporaryFile())  # noqa: SIM115
    if pid := os.fork():
        return started._replace(pid=pid)
    code = 99
    try:
        signal.alarm(LIMIT)
        os.environ.update(environment)
        os.dup2(started.out.fileno(), 1)
        os.dup2(started.err.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
        code = one_rank.main(fault, list(map(str, words)))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ranked(*words: object, size: int, fault: str = "", skip: int | None = None) -> list[Ended]:
    """What came out of every rank; `skip` is not started."""
    port = free_port()
    started = [start(words, fault, variables(rank, size, port)) for rank in range(size) if rank != skip]
    return [rank.end() for rank in started]


@pytest.fixture(scope="module")
def source(shared_tiny: Tiny) -> Path:
    return shared_tiny("glm4_moe", shards=2)


@pytest.fixture(scope="module")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversion by one process."""
    target = tmp_path_factory.mktemp("alone") / "td"
    convert(source, target, Options(max_shard_size=20_000))
    return target


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_writes_the_same(size: int, source: Path, alone: Path, tmp_path: Path) -> None:
    first, *others = ranked("convert", source, tmp_path / "td", *SHARDS, "--verify", "--json", size=size)
    assert (first.code, first.err) == (0, ""), first
    assert json.loads(first.out)["result"]["verified"] is True
    assert others == [Ended(0, "", "")] * (size - 1)
    assert tree(tmp_path / "td") == tree(alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["td"]


def test_back_and_with_a_cast(alone: Path, tmp_path: Path) -> None:
    convert(alone, tmp_path / "one", Options(dtype="F32", max_shard_size=20_000))
    ended = ranked("convert", alone, tmp_path / "two", *SHARDS, "--dtype", "float32", size=2)
    assert [rank.code for rank in ended] == [0, 0]
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


def test_more_ranks_than_files(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "one", Options())
    assert [rank.code for rank in ranked("convert", source, tmp_path / "three", size=3)] == [0, 0, 0]
    assert tree(tmp_path / "three") == tree(tmp_path / "one")


def test_torchrun_itself(source: Path, alone: Path, tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ckpt_tools"]
    line = [sys.executable, *words, "convert", str(source), str(tmp_path / "td"), *SHARDS, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert tree(tmp_path / "td") == tree(alone)


@pytest.mark.parametrize(
    ("fault", "code", "finding", "kept"),
    [
        ("disk-full", 1, "disk-full", True),
        ("interrupt", 130, "interrupted", True),
        ("bug", 1, "bug", False),
        ("not-shared", 1, "destination-not-shared", False),
        ("bad-source", 3, "ref-not-found", None),
    ],
)
def test_a_failing_rank_stops_all_with_one_error(
    fault: str,
    code: int,
    finding: str,
    kept: bool | None,
    source: Path,
    alone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 says what happened and where; what is worth it is kept, and one process alone goes on with it."""
    first, *others = ranked("convert", source, tmp_path / "td", *SHARDS, "--json", size=2, fault=fault)
    said = json.loads(first.out)
    assert [item["code"] for item in said["findings"]] == [finding]
    assert f"(rank 1 on {socket.gethostname()})" in said["findings"][0]["where"]
    assert (first.code, first.err) == (code, "")
    assert others == [Ended(code, "", "")]
    assert not (tmp_path / "td").exists()
    assert (tmp_path / "td.partial").exists() == bool(kept)
    if kept:
        for name, value in LIMITS.items():
            monkeypatch.setattr(program_module, name, value)
        assert convert(source, tmp_path / "td", Options(max_shard_size=20_000)).result.resumed > 0
        assert tree(tmp_path / "td") == tree(alone)


def test_a_killed_rank_is_missed_and_any_number_of_ranks_goes_on(source: Path, alone: Path, tmp_path: Path) -> None:
    ended = ranked("convert", source, tmp_path / "td", *SHARDS, "--json", size=3, fault="kill")
    assert [rank.code for rank in ended] == [1, 1, -9]
    said = json.loads(ended[0].out)
    assert [item["code"] for item in said["findings"]] == ["rank-lost"]
    assert "rank 2" in said["findings"][0]["what"]
    again = ranked("convert", source, tmp_path / "td", *SHARDS, "--json", size=2)
    assert json.loads(again[0].out)["result"]["resumed"] > 0
    assert tree(tmp_path / "td") == tree(alone)


def test_a_rank_that_never_comes(source: Path, tmp_path: Path) -> None:
    (only,) = ranked("convert", source, tmp_path / "td", "--json", size=2, fault="absent", skip=1)
    assert only.code == 1
    assert [item["code"] for item in json.loads(only.out)["findings"]] == ["ranks-do-not-meet"]
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_plan_different_things(source: Path, tiny: Tiny, tmp_path: Path) -> None:
    port, other = free_port(), tiny("glm4_moe")
    words = [("convert", folder, tmp_path / "td", "--json") for folder in (source, other)]
    started = [start(words[rank], "", variables(rank, 2, port)) for rank in range(2)]
    ended = [rank.end() for rank in started]
    assert [rank.code for rank in ended] == [1, 1]
    assert [item["code"] for item in json.loads(ended[0].out)["findings"]] == ["ranks-disagree"]
    assert not list(tmp_path.glob("td*"))


def test_a_launcher_of_one_process_is_no_crowd(
    source: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may say WORLD_SIZE 8 of its job; without a local rank nobody has started eight of us."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    words = ["convert", str(source), str(tmp_path / "td"), *SHARDS]
    subprocess.run([sys.executable, "-m", "ckpt_tools", *words], check=True, capture_output=True, timeout=LIMIT)
    assert tree(tmp_path / "td") == tree(alone)


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces on one wire, 10.213.77.1 and .2; each has a loopback of its own."""
    names = (f"ckpt-a-{os.getpid()}", f"ckpt-b-{os.getpid()}")
    if shutil.which("ip") is None or not ip("netns", "add", names[0]):
        pytest.skip("network namespaces need root and iproute2")
    try:
        wires = ("va" + str(os.getpid()), "vb" + str(os.getpid()))
        assert ip("netns", "add", names[1])
        assert ip("link", "add", wires[0], "netns", names[0], "type", "veth", "peer", wires[1], "netns", names[1])
        for number, (space, wire) in enumerate(zip(names, wires, strict=True), 1):
            assert ip("-n", space, "addr", "add", f"10.213.77.{number}/24", "dev", wire)
            assert ip("-n", space, "link", "set", wire, "up") and ip("-n", space, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def test_ranks_in_separate_network_namespaces(
    spaces: tuple[str, str], source: Path, alone: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.convert.one_rank", "", "convert", str(source), str(tmp_path / "td"), *SHARDS]
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", space, *words],
            env=os.environ | variables(rank, 2, 29517, "10.213.77.1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, space in enumerate(spaces)
    ]
    said = [process.communicate(timeout=LIMIT) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert said[1] == ("", "")
    assert tree(tmp_path / "td") == tree(alone)
