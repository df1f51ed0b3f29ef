"""Sound checkpoints with one file changed at random: refused with a finding, or understood; nothing else happens."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .readers import NAMES, Reader, readers

NUMBERS = [b"-1", b"0", b"1.5", b"1e999", b"99999999999999999999", b"null", b'"x"', b"[]", b"{}", b"true", b"NaN"]
NASTY = [
    *NUMBERS,
    b'"../../x"',
    b'"/etc/passwd"',
    b'"\\u0000"',
    b'"\\ud800"',
    b"\xff\xff\xff\xff",
    b"\0" * 8,
    b"[" * 3000,
]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A reader that asks for gigabytes fails with MemoryError instead of taking them from the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@st.composite
def damaged(draw: st.DrawFn, seed: bytes, dense: int) -> bytes:
    """The bytes with up to three of: noise over them, a nasty value for a run, a run left out or repeated, an end cut off.

    Most damage falls into the first `dense` bytes, where formats keep what they say of themselves.
    """
    data = seed
    for _ in range(draw(st.integers(1, 3))):
        limit = min(len(data), dense) if draw(st.integers(0, 3)) else len(data)
        at = draw(st.integers(0, max(0, limit - 1)))
        length = draw(st.integers(0, 24))
        kind = draw(st.sampled_from(["noise", "nasty", "left out", "repeated", "cut"]))
        if kind == "noise":
            data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at + length :]
        elif kind == "nasty":
            data = data[:at] + draw(st.sampled_from(NASTY)) + data[at + length :]
        elif kind == "left out":
            data = data[:at] + data[at + length :]
        elif kind == "repeated":
            data = data[:at] + data[at : at + length] * 2 + data[at + length :]
        else:
            data = data[:at]
    return data


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_refused_or_understood(name: str, everything: dict[str, Reader]) -> None:
    reader = everything[name]
    seed = reader.seed
    assert reader.read(seed, seed) in ("", *(["draft-unknown"] if reader.folder.name == "head" else []))

    @settings(max_examples=25)
    @given(data=damaged(seed, 4000))
    def check(data: bytes) -> None:
        reader.read(data, seed)

    check()


@pytest.mark.parametrize("name", ["config", "head-config", "index", "manifest", "carried-config", "checksums"])
def test_json_values_of_the_wrong_type(name: str, everything: dict[str, Reader]) -> None:
    """Every value of every JSON file, replaced by every nasty one."""
    reader = everything[name]
    seed = reader.seed
    value = json.loads(seed)
    for key in value:
        for nasty in (
            None,
            -1,
            0,
            1.5,
            10**30,
            10**7,
            "x",
            "../x",
            [],
            {},
            [[]],
            {"a": {"b": []}},
            True,
            [None],
            {"": 1},
        ):
            reader.read(json.dumps(value | {key: nasty}).encode(), seed)
    for nasty in (b"", b"[]", b"null", b"1", b"\xff\xfe{}", b"{", b'{"a":1,"a":2}', b"[" * 100_000):
        reader.read(nasty, seed)
