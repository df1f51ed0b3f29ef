"""A disk that really fills in the middle: nothing looks complete, and after some room is made the work goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.convert import Options, convert
from ckpt_tools.convert import writing as writing_module
from ckpt_tools.engine import program as program_module
from ckpt_tools.engine.output import SLACK
from ckpt_tools.errors import CkptError
from tests.checkpoints import tree
from tests.conftest import Tiny

WIDE = {"hidden": 256, "vocab": 8000, "layers": 4}
MEGABYTE = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with room for one conversion and little more."""
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={SLACK + 40 * MEGABYTE}"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def eaten(place: Path, leave: int) -> Path:
    """Somebody else's file, which leaves that many bytes free."""
    ballast = place / "ballast"
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, shutil.disk_usage(place).free - leave)
    return ballast


def filling(place: Path, after: int) -> Callable[[int], Callable[[int], None]]:
    """Progress of a conversion during which the disk fills up when `after` bytes are written."""
    written = [0]

    def progress(nbytes: int) -> None:
        written[0] += nbytes
        if written[0] > after and not (place / "ballast").exists():
            eaten(place, leave=MEGABYTE)

    return lambda total: progress


@pytest.mark.parametrize("way", ["to torch-dist", "to Hugging Face"])
def test_a_disk_that_fills_in_the_middle(
    way: str, shared_tiny: Tiny, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "PIECE", 256 << 10)
    source = shared_tiny("mimo", **WIDE)
    if way == "to Hugging Face":
        convert(source, tmp_path / "source", Options())
        source = tmp_path / "source"
    target = small / "out"
    with pytest.raises(CkptError) as caught:
        convert(source, target, Options(), filling(small, 2 * MEGABYTE))
    (finding,) = caught.value.findings
    assert finding.code == "disk-full"
    assert "run it again" in finding.fix and f"{target}.partial" in finding.fix
    assert sorted(path.name for path in small.iterdir()) == ["ballast", "out.partial"]
    with pytest.raises(CkptError):
        convert(target.with_name("out.partial"), tmp_path / "from-partial", Options())
    with pytest.raises(CkptError) as caught:  # still full: refused before anything is touched
        convert(source, target, Options())
    assert caught.value.findings[0].code == "disk-full"
    (small / "ballast").unlink()
    found = convert(source, target, Options()).result
    assert 2 * MEGABYTE < found.resumed < found.nbytes
    convert(source, tmp_path / "undisturbed", Options())
    assert tree(target) == tree(tmp_path / "undisturbed")
    assert [path.name for path in small.iterdir()] == ["out"]


def test_a_disk_too_small_from_the_beginning(shared_tiny: Tiny, small: Path) -> None:
    eaten(small, leave=MEGABYTE)
    with pytest.raises(CkptError) as caught:
        convert(shared_tiny("mimo", **WIDE), small / "out", Options())
    assert caught.value.findings[0].code == "disk-full"
    assert [path.name for path in small.iterdir()] == ["ballast"]


def test_a_disk_that_is_full_when_the_last_files_are_written(
    shared_tiny: Tiny, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are in, config and sidecars are not: nothing looks complete, and the weights are not written again."""
    source, finish = shared_tiny("mimo", **WIDE), writing_module.finish

    def late(*arguments: Any) -> list[str]:
        eaten(small, leave=0)
        return finish(*arguments)

    with monkeypatch.context() as patch, pytest.raises(CkptError) as caught:
        patch.setattr(writing_module, "finish", late)
        convert(source, small / "out", Options())
    assert caught.value.findings[0].code == "disk-full"
    assert not (small / "out").exists()
    (small / "ballast").unlink()
    found = convert(source, small / "out", Options()).result
    assert found.resumed > 0.99 * found.nbytes
    convert(source, tmp_path / "undisturbed", Options())
    assert tree(small / "out") == tree(tmp_path / "undisturbed")
