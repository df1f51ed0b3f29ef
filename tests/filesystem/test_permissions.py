"""What may not be read or written: said with the file's name and the right exit code, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_tools.convert import Options, convert
from tests.checkpoints import tree
from tests.conftest import Tiny

from .conftest import Unprivileged


@pytest.fixture
def source(tiny: Tiny) -> Iterator[Path]:
    folder = tiny("mimo", shards=3)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


def locked(folder: Path) -> None:
    """Nobody may write to the folder or to anything in it."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_source_that_may_only_be_read(source: Path, unprivileged: Unprivileged, tmp_path: Path) -> None:
    convert(source, tmp_path / "wanted", Options())
    before = tree(source)
    locked(source)
    ran = unprivileged("convert", source, tmp_path / "td", "--verify")
    assert ran.returncode == 0, ran.stderr
    assert tree(tmp_path / "td") == tree(tmp_path / "wanted")
    locked(tmp_path / "td")
    ran = unprivileged("convert", tmp_path / "td", tmp_path / "hf", "--verify")
    assert ran.returncode == 0, ran.stderr
    for words in (("inspect", source, "--check"), ("extract-draft", source, tmp_path / "head")):
        ran = unprivileged(*words)
        assert ran.returncode == 0, ran.stderr
    ran = unprivileged("merge-draft", source, tmp_path / "head", tmp_path / "merged")
    assert ran.returncode == 0, ran.stderr
    assert tree(source) == before
    for path in (tmp_path / "td").rglob("*"):
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("what", "code"),
    [("model-00002-of-00003.safetensors", 3), ("config.json", 3), ("model.safetensors.index.json", 3), (".", 3)],
)
def test_a_source_that_may_not_be_read(
    what: str, code: int, source: Path, unprivileged: Unprivileged, tmp_path: Path
) -> None:
    (source / what).chmod(0)
    ran = unprivileged("convert", source, tmp_path / "td", "--json")
    assert (ran.returncode, ran.stderr) == (code, ""), ran.stdout
    findings = json.loads(ran.stdout)["findings"]
    assert any(str(source / what) in finding["where"] for finding in findings)
    assert any("ermission denied" in finding["what"] + finding["actual"] for finding in findings), findings
    assert not list(tmp_path.glob("td*"))


@pytest.mark.parametrize("what", ["__0_0.distcp", ".metadata", "common.pt", "hf/config.json"])
def test_a_torch_dist_directory_that_may_not_be_read(
    what: str, source: Path, unprivileged: Unprivileged, tmp_path: Path
) -> None:
    convert(source, tmp_path / "td", Options())
    (tmp_path / "td/release" / what).chmod(0)
    ran = unprivileged("convert", tmp_path / "td", tmp_path / "hf", "--json")
    assert (ran.returncode, ran.stderr) == (3, ""), ran.stdout
    findings = json.loads(ran.stdout)["findings"]
    assert any(what in finding["where"] for finding in findings)
    assert not list(tmp_path.glob("hf.partial")) and not (tmp_path / "hf").exists()


def test_a_sidecar_that_may_not_be_read_leaves_no_output(
    source: Path, unprivileged: Unprivileged, tmp_path: Path
) -> None:
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer.json").chmod(0)
    ran = unprivileged("convert", source, tmp_path / "td", "--json")
    assert ran.returncode in (1, 3), ran.stdout
    assert not (tmp_path / "td").exists()
    assert "tokenizer.json" in ran.stdout
    (source / "tokenizer.json").chmod(0o644)
    assert unprivileged("convert", source, tmp_path / "td").returncode == 0


def test_a_destination_that_may_not_be_written(source: Path, unprivileged: Unprivileged, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o555)
    ran = unprivileged("convert", source, place / "td", "--json")
    assert (ran.returncode, ran.stderr) == (3, ""), ran.stdout
    (finding,) = json.loads(ran.stdout)["findings"]
    assert (finding["what"], finding["where"]) == ("Permission denied", f"{place}/td.partial")
    assert list(place.iterdir()) == []
