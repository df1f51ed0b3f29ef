"""Checksums of every file: recorded on request, and any changed byte is found later."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.checkpoints import tree
from tests.conftest import Command, Tiny


def manifest_of(target: Path) -> Path:
    return target / "release/hf/ckpt-tools.json" if (target / "release").is_dir() else target / "ckpt-tools.json"


@pytest.fixture(params=["torch-dist", "hf"])
def written(request: pytest.FixtureRequest, shared_tiny: Tiny, command: Command, tmp_path: Path) -> Path:
    source = shared_tiny("mimo")
    if request.param == "hf":
        command("convert", source, tmp_path / "td")
        source = tmp_path / "td"
    command("convert", source, tmp_path / "out", "--checksums")
    return tmp_path / "out"


def test_every_file_but_the_manifest_is_recorded(written: Path) -> None:
    manifest = manifest_of(written)
    root = written / "release" if (written / "release").is_dir() else written
    wanted = {name: hashlib.sha256(data).hexdigest() for name, data in tree(root).items()}
    del wanted[str(manifest.relative_to(root))]
    assert json.loads(manifest.read_text())["checksums"] == wanted
    assert len(wanted) > 5


def test_one_changed_bit_is_found(written: Path, command: Command) -> None:
    sound = command("inspect", written, "--check", "--json").result
    assert sound["checksums"] == len(json.loads(manifest_of(written).read_text())["checksums"])
    victim = max(written.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    ran = command("inspect", written, "--check", "--json", code=1)
    assert ran.finding("checksum-differs")["where"] == str(victim)
    assert command("inspect", written, "--json").codes == []


def test_a_file_that_is_gone_is_found(written: Path, command: Command) -> None:
    (gone,) = written.rglob("tokenizer.json")
    gone.unlink()
    assert "checksum-file-missing" in command("inspect", written, "--check", "--json", code=1).codes


def test_a_name_that_leads_out_is_not_followed(written: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    manifest = manifest_of(written)
    value = json.loads(manifest.read_text())
    outside = (
        "../" * (len(manifest.relative_to(tmp_path).parts) - (2 if "hf" in manifest.parent.name else 1)) + "secret"
    )
    value["checksums"][outside] = hashlib.sha256(b"secret").hexdigest()
    manifest.write_text(json.dumps(value))
    assert command("inspect", written, "--check", "--json", code=1).codes == ["checksum-file-missing"]


def test_the_manifest_of_a_folder_does_not_change_what_it_is(
    shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """As the original of a later conversion, the folder speaks for itself: its headers say what was tied and in which dtype."""
    source = shared_tiny("llama", tied=True, store_tied_head=True)
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "hf", "--checksums")
    command("convert", tmp_path / "td", tmp_path / "again", "--hf-config", tmp_path / "hf")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()
    assert not (tmp_path / "again/ckpt-tools.json").exists()
