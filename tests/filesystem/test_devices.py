"""Source and destination on different devices, tmpfs among them: the same bytes as on one disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from ckpt_tools.convert import Options, convert
from tests.checkpoints import assert_same, hf_tensors, tree
from tests.conftest import Tiny

WIDE = {"hidden": 256, "vocab": 2000, "shards": 2}  # tensors that are copied one by one, not gathered


@pytest.fixture
def source(shared_tiny: Tiny) -> Path:
    return shared_tiny("mimo", **WIDE)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What copy_file_range really said: "copied", or the name of an error."""
    said: set[str] = set()
    real = os.copy_file_range

    def call(*arguments: int) -> int:
        try:
            done = real(*arguments)
        except OSError as problem:
            said.add(errno.errorcode[problem.errno or 0])
            raise
        said.add("copied")
        return done

    monkeypatch.setattr(os, "copy_file_range", call)
    return said


@pytest.mark.parametrize("before", ["disk", "memory"])
@pytest.mark.parametrize("after", ["disk", "memory"])
def test_another_device_gets_the_same_bytes(
    before: str, after: str, source: Path, memory: Path, tmp_path: Path, answers: set[str]
) -> None:
    """`before` and `after` are where source and destination lie. Since 5.19 Linux copies no ranges across file systems."""
    place = {"disk": tmp_path, "memory": memory}
    start = Path(shutil.copytree(source, place[before] / "start"))
    convert(start, place[after] / "td", Options())
    convert(place[after] / "td", place[before] / "hf", Options())
    assert answers and answers <= {"copied", "EXDEV"}
    convert(source, tmp_path / "one-disk", Options())
    assert tree(place[after] / "td") == tree(tmp_path / "one-disk")
    assert_same(hf_tensors(place[before] / "hf"), hf_tensors(source))


def test_the_destination_is_a_link_to_another_device(source: Path, memory: Path, tmp_path: Path) -> None:
    (memory / "real").mkdir()
    (tmp_path / "link").symlink_to(memory / "real")
    convert(source, tmp_path / "link", Options())
    convert(source, tmp_path / "td", Options())
    assert (tmp_path / "link").is_symlink()
    assert tree(memory / "real") == tree(tmp_path / "td")


def test_shards_on_several_devices(source: Path, memory: Path, tmp_path: Path) -> None:
    """A folder whose shards are links to other disks, as caches make them."""
    folder = Path(shutil.copytree(source, tmp_path / "folder"))
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "elsewhere")
    shutil.copyfile(tmp_path / "elsewhere", memory / shard.name)
    shard.symlink_to(memory / shard.name)
    convert(folder, tmp_path / "td", Options())
    convert(tmp_path / "td", tmp_path / "hf", Options())
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
