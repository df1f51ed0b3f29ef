"""Headers that lie: every one is refused by us, and by the safetensors library as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from ckpt_tools.stores.hf_folder import open_folder
from ckpt_tools.stores.safetensors_header import MAX_HEADER, BadHeader, header_bytes, read_header


def file_of(header: bytes | dict[str, Any], data: int = 0, length: int | None = None) -> bytes:
    raw = json.dumps(header).encode() if isinstance(header, dict) else header
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data)


def entry(start: int, stop: int, shape: Any = (2,), dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


GOOD = {"a": entry(0, 2), "b": entry(2, 4)}
NO_NUMBERS: list[Any] = [(-2,), (-1, -2), (2.0,), ("2",), (None,), ([2],), 2, None, "2", {"2": 1}]

CASES: dict[str, tuple[str, bytes]] = {
    "empty": ("file-truncated", b""),
    "seven bytes": ("file-truncated", bytes(7)),
    "no JSON": ("header-invalid", bytes(8)),
    "longer than the file": ("file-truncated", file_of(GOOD, 4, length=1000)),
    "longer than allowed": ("file-truncated", file_of(GOOD, 4, length=MAX_HEADER + 1)),
    "length of 2**64 - 1": ("file-truncated", file_of(GOOD, 4, length=2**64 - 1)),
    "cut in the data": ("file-truncated", file_of(GOOD, 3)),
    "cut to the header": ("file-truncated", file_of(GOOD)),
    "bytes at the end": ("file-too-long", file_of(GOOD, 5)),
    "not UTF-8": ("header-invalid", file_of(b'{"\xff": 1}')),
    "broken JSON": ("header-invalid", file_of(b'{"a": ')),
    "deep JSON": ("header-invalid", file_of(b"[" * 200_000)),
    "a list": ("header-invalid", file_of(b"[]")),
    "a number": ("header-invalid", file_of(b"1")),
    "twice": ("header-invalid", file_of(b'{"a": %b, "a": %b}' % ((json.dumps(entry(0, 2)).encode(),) * 2), 2)),
    "overlap": ("header-invalid", file_of({"a": entry(0, 2), "b": entry(1, 3)}, 3)),
    "same bytes": ("header-invalid", file_of({"a": entry(0, 2), "b": entry(0, 2)}, 2)),
    "hole": ("header-invalid", file_of({"a": entry(0, 2), "b": entry(3, 5)}, 5)),
    "hole in front": ("header-invalid", file_of({"a": entry(1, 3)}, 3)),
    "too few bytes for the shape": ("header-invalid", file_of({"a": entry(0, 2, (3,))}, 2)),
    "too many bytes for the shape": ("header-invalid", file_of({"a": entry(0, 2, (1,))}, 2)),
    "bytes of another dtype": ("header-invalid", file_of({"a": entry(0, 2, (2,), "BF16")}, 2)),
    "overflowing shape": ("header-invalid", file_of({"a": entry(0, 2, (2**33, 2**33))}, 2)),
    "reversed": ("header-invalid", file_of({"a": entry(2, 0)}, 2)),
    "negative offsets": ("header-invalid", file_of({"a": entry(-2, 0)}, 0)),
    "three offsets": ("header-invalid", file_of({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1, 2]}}, 2)),
    "unknown dtype": ("dtype-unknown", file_of({"a": entry(0, 2, dtype="F12")}, 2)),
    "dtype in lower case": ("dtype-unknown", file_of({"a": entry(0, 2, dtype="u8")}, 2)),
    "dtype of values that share a byte": ("dtype-unknown", file_of({"a": entry(0, 2, dtype="I4")}, 2)),
    "dtype is null": ("dtype-unknown", file_of({"a": entry(0, 2, dtype=None)}, 2)),
    "dtype is a list": ("header-invalid", file_of({"a": entry(0, 2, dtype=["U8"])}, 2)),
    "no dtype": ("header-invalid", file_of({"a": {"shape": [2], "data_offsets": [0, 2]}}, 2)),
    "entry is null": ("header-invalid", file_of({"a": None})),
    "entry is a list": ("header-invalid", file_of({"a": [1, 2]})),
    "HTML": ("file-truncated", b"<html>Too many requests"),
    "LFS pointer": ("file-truncated", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
} | {f"shape {shape}": ("header-invalid", file_of({"a": entry(0, 2, shape)}, 2)) for shape in NO_NUMBERS}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_one_finding(name: str, tmp_path: Path) -> None:
    code, data = CASES[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadHeader) as caught:
        read_header(path, 0)
    finding = caught.value.finding
    assert (finding.code, finding.where) == (code, str(path))
    assert finding.expected
    assert finding.actual
    assert [f.code for f in open_folder(tmp_path).report.findings] == [code]


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"twice"}))
def test_the_library_refuses_it_too(name: str, tmp_path: Path) -> None:
    """So that our strictness is the format's, not our own; of a key that occurs twice the library takes the last."""
    (tmp_path / "model.safetensors").write_bytes(CASES[name][1])
    with pytest.raises((SafetensorError, OSError)), safe_open(tmp_path / "model.safetensors", "pt"):
        pass


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    data = header_bytes([("a", "U8", (2,)), ("b", "F32", (1,))]) + bytes(6)
    path = tmp_path / "model.safetensors"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BadHeader) as caught:
            read_header(path, 0)
        assert caught.value.finding.code == "file-truncated"
    path.write_bytes(data)
    assert read_header(path, 0).keys() == {"a", "b"}
