"""torch-dist directories that lost something or lie: refused before a tensor byte is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools.errors import CkptError
from ckpt_tools.stores.torch_dist.metadata import Box, Stored, parse
from ckpt_tools.stores.torch_dist.metadata_writer import serialise
from ckpt_tools.stores.torch_dist.reader import METADATA, locate, open_checkpoint
from tests.stores.make import EMBEDDING, STACK, torch_dist

from .directories import only, refused, with_metadata


def test_a_sound_directory(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(torch_dist(tmp_path))
    assert checkpoint.report.findings == []
    locate(checkpoint, checkpoint.model_keys)
    assert len(checkpoint.tensors[STACK.name].chunks) == 6


def test_a_missing_file(tmp_path: Path) -> None:
    torch_dist(tmp_path, max_file=1000)
    (tmp_path / "__0_1.distcp").unlink()
    finding = only(tmp_path)
    assert (finding.code, finding.where) == ("shard-missing", str(tmp_path / "__0_1.distcp"))
    assert "incomplete copy?" in finding.fix


def test_a_short_file(tmp_path: Path) -> None:
    path = torch_dist(tmp_path) / "__0_0.distcp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    finding = only(tmp_path)
    assert (finding.code, finding.where) == ("file-truncated", str(path))
    assert (finding.expected, finding.actual) == (f"at least {size:,} bytes", f"{size - 1:,} bytes")


def test_a_chunk_of_another_dtype(tmp_path: Path) -> None:
    torch_dist(tmp_path)
    contents = parse((tmp_path / METADATA).read_bytes(), "")[0]
    tensors = [replace(entry, dtype="F16") for entry in contents.tensors.values()]
    (tmp_path / METADATA).write_bytes(serialise(tensors, contents.objects))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CkptError) as caught:
        locate(checkpoint, {EMBEDDING.name, STACK.name})
    findings = caught.value.findings
    assert {finding.code for finding in findings} == {"chunk-differs"}
    assert len(findings) == 7
    assert (findings[-1].expected, findings[-1].actual) == ("F16 [10, 4]", "BF16 [10, 4]")
    assert EMBEDDING.name in findings[-1].where


def test_a_chunk_of_another_shape(tmp_path: Path) -> None:
    """Two chunks of one size exchanged their places; and one that points at another tensor's frame."""

    def exchanged(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        embedding = Stored("__0_0.distcp", boxes[-1].stored.offset + boxes[-1].stored.length, boxes[-1].stored.length)
        return (*boxes[:-1], boxes[-1]._replace(stored=embedding))

    checkpoint = open_checkpoint(with_metadata(tmp_path, exchanged))
    with pytest.raises(CkptError) as caught:
        locate(checkpoint, {STACK.name})
    assert caught.value.findings[0].code in ("chunk-differs", "frame-damaged")


@pytest.mark.parametrize("data", [b"", b"\0" * 30, b"PK\x05\x06" + bytes(18), b"x" * 5000])
def test_a_common_state_that_is_no_archive(data: bytes, tmp_path: Path) -> None:
    (torch_dist(tmp_path) / "common.pt").write_bytes(data)
    finding = refused(tmp_path)
    assert (finding.code, finding.where) == ("frame-damaged", str(tmp_path / "common.pt"))


def test_no_common_state(tmp_path: Path) -> None:
    (torch_dist(tmp_path) / "common.pt").unlink()
    finding = only(tmp_path)
    assert (finding.code, finding.severity) == ("common-absent", "note")
