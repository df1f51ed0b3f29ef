"""A head on the Hub is verified from its headers and small tensors: no weights come over the wire. The Hub is a folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

import huggingface_hub
import pytest
import torch

from ckpt_tools.errors import NotFound
from ckpt_tools.refs import resolve_headers
from tests.checkpoints import changed
from tests.conftest import Command
from tests.drafts.heads import asset, target_of

NAME = "someone/smollm2-eagle3"


class Counted(io.BytesIO):
    """A remote file that counts what is read of it."""

    def __init__(self, data: bytes, log: list[int]) -> None:
        super().__init__(data)
        self.log = log

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.log.append(len(data))
        return data


class FakeHub:
    """`snapshot_download` and `HfFileSystem` over a local folder."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache, self.read, self.ignored = root, cache, list[int](), list[str]()

    def snapshot_download(self, name: str, revision: str | None, ignore_patterns: list[str]) -> str:
        assert name == NAME
        self.ignored = ignore_patterns
        self.cache.mkdir(exist_ok=True)
        (self.cache / "config.json").write_bytes((self.root / "config.json").read_bytes())
        return str(self.cache)

    def filesystem(self) -> Any:
        hub = self

        class FileSystem:
            def glob(self, pattern: str) -> list[str]:
                folder, _, ending = pattern.rpartition("/")
                return [f"{folder}/{path.name}" for path in hub.root.glob(ending)]

            def size(self, path: str) -> int:
                return (hub.root / Path(path).name).stat().st_size

            def open(self, path: str, mode: str, block_size: int) -> IO[bytes]:
                return Counted((hub.root / Path(path).name).read_bytes(), hub.read)

        return FileSystem()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub(asset("eagle3", tmp_path / "remote"), tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", made.filesystem)
    monkeypatch.setattr("ckpt_tools.refs.SMALL", 1 << 18)  # the matrices of this head are larger
    monkeypatch.setattr("ckpt_tools.drafts.checks.values.SMALL", 1 << 18)
    return made


def test_headers_and_small_tensors_only(hub: FakeHub, command: Command, tmp_path: Path) -> None:
    target = target_of("eagle3", tmp_path / "target")
    ran = command("verify-draft", f"{NAME}@v1", "--target", target, "--json")
    assert ran.result["fits"] and ran.result["tensors"] == 15
    assert "*.safetensors" in hub.ignored
    stored = (hub.root / "model.safetensors").stat().st_size
    assert sum(hub.read) < stored / 20
    outcomes = {check["name"]: check["outcome"] for check in ran.result["checks"]}
    assert outcomes["lm_head"] == "not checked" and outcomes["draft vocabulary"] == outcomes["values"] == "ok"


def test_findings_are_the_same(hub: FakeHub, command: Command, tmp_path: Path) -> None:
    with changed(hub.root / "model.safetensors") as tensors:
        tensors["d2t"] += torch.arange(8192)
        del tensors["midlayer.mlp.up_proj.weight"]
        tensors["norm.weight"][:] = float("nan")
    ran = command("verify-draft", NAME, "--target", target_of("eagle3", tmp_path / "t"), "--json", code=1)
    assert {"d2t-absolute", "tensors-missing", "tensor-not-finite"} <= set(ran.codes)


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    folder = asset("eagle", tmp_path / "head")
    assert resolve_headers(str(folder)) == (folder, True)
    with pytest.raises(NotFound):
        resolve_headers(str(tmp_path / "none"))


def test_a_broken_remote_file(hub: FakeHub, command: Command, tmp_path: Path) -> None:
    (hub.root / "model.safetensors").write_bytes(b"\xff" * 100)
    ran = command("verify-draft", NAME, "--target", target_of("eagle3", tmp_path / "t"), "--json", code=3)
    assert ran.codes == ["file-truncated"]


def test_no_network(hub: FakeHub, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", unreachable)
    ran = command("verify-draft", NAME, "--target", target_of("eagle3", tmp_path / "t"), "--json", code=3)
    assert ran.codes == ["hub-unreachable"]
