"""Folders and files whose names hold spaces, letters of any alphabet, quotes and newlines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.checkpoints import INDEX, assert_same, hf_tensors, holders, tree, write_index
from tests.conftest import Command, Tiny

NAMES = [
    "a model",
    "mödèl 模型 모델",
    "two\nlines",
    "'quotes\" and $HOME `x` ; * [a-b]?",
    "-dash",
    "%s {0} \\n",
    "x" * 240,
]


@pytest.fixture
def renamed(tiny: Tiny) -> Path:
    """A model whose shards and sidecars have such names as well."""
    folder = tiny("mimo", shards=3)
    held = holders(folder)
    new = {file: f"part {number}\n模型'.safetensors" for number, file in enumerate(sorted(set(held.values())))}
    for file, name in new.items():
        (folder / file).rename(folder / name)
    write_index(folder, {tensor: new[file] for tensor, file in held.items()})
    (folder / "lies mich\nzuerst ü.txt").write_text("hallo")
    (folder / "some folder" / "ñ").mkdir(parents=True)
    (folder / "some folder" / "ñ" / "a b.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_will_do(name: str, renamed: Path, tmp_path: Path, command: Command) -> None:
    place = tmp_path / f"in {name}"[:250]
    source = Path(shutil.copytree(renamed, place / name))
    there, back = place / f"td {name}"[:240], place / f"hf {name}"[:240]
    ran = command("convert", source, there, "--verify", "--checksums", "--json")
    assert json.loads(ran.out)["result"]["destination"] == str(there)
    command("inspect", there, "--check")
    command("convert", there, back, "--verify", "--max-shard-size", "20KB")
    assert_same(hf_tensors(back), hf_tensors(source))
    wanted = {path: data for path, data in tree(source).items() if "safetensors" not in path}
    found = {path: data for path, data in tree(back).items() if "safetensors" not in path and path != "ckpt-tools.json"}
    assert found == wanted
    assert sorted(path.name for path in place.iterdir()) == sorted([name, there.name, back.name])


def test_a_finding_about_such_a_file_names_it(renamed: Path, tmp_path: Path, command: Command) -> None:
    file = sorted(renamed.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    ran = command("convert", renamed, tmp_path / "td", "--json", code=None)
    assert ran.code != 0
    assert any(str(file) in finding["where"] for finding in json.loads(ran.out)["findings"])
    assert (renamed / INDEX).is_file()


def test_a_name_that_is_no_utf_8(tiny: Tiny, tmp_path: Path, command: Command) -> None:
    """Linux names are bytes."""
    source = tiny("llama").rename(tmp_path / "caf\udce9")
    (source / "notes \udcff.txt").write_text("x")
    ran = command("convert", source, tmp_path / "td", "--verify", "--checksums", "--json")
    assert json.loads(ran.out)["result"]["source"] == str(source)
    assert (tmp_path / "td/release/hf/notes \udcff.txt").read_text() == "x"
    command("inspect", tmp_path / "td", "--check")
