"""Pickles of a few bytes that ask for gigabytes, or for changes that outlive them."""

from __future__ import annotations

import argparse
import gc
import pickle
import pickletools
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError
from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.claims import overclaimed
from ckpt_tools.stores.torch_dist.metadata import DCP, parse
from ckpt_tools.stores.torch_dist.pickles import loads

from .directories import metadata_of

MUCH = 1 << 26
LITTLE = 8 << 20
RANGE = op.call(op.glob("builtins", "range"), op.tuple_of((op.integer(MUCH),)))


def called(module: str, name: str, argument: bytes) -> bytes:
    return op.program(op.call(op.glob(module, name), op.tuple_of((argument,))))


def laughs(depth: int) -> bytes:
    """A tuple of two of a tuple of two of ...: `depth` objects, 2**depth leaves."""
    return op.EMPTY_TUPLE + b"".join(b"q\x00h\x00\x86" for _ in range(depth))


CLAIMS = {
    "memo": b"\x80\x02]r" + struct.pack("<I", MUCH) + b".",
    "memo after a frame": b"\x80\x04\x95" + struct.pack("<Q", 7) + b"]r" + struct.pack("<I", MUCH) + b".",
    "memo as text": f"]p{MUCH}\n.".encode(),
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abcd.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abcd.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abcd.",
    "long": b"\x80\x02\x8b" + struct.pack("<i", MUCH) + b"abcd.",
}
BOMBS = {
    **{f"{name} of a number": called("builtins", name, op.integer(MUCH)) for name in ("bytes", "bytearray")},
    **{f"{name} of a range": called("builtins", name, RANGE) for name in ("list", "tuple", "set", "frozenset")},
    "size of a range": called("torch", "Size", RANGE),
    "list of a range, as a new object": op.program(op.glob("builtins", "list") + op.tuple_of((RANGE,)) + b"\x81"),
    "persistent id": op.program(op.persistent(RANGE)),
    "text of a nested tuple": called("builtins", "str", laughs(24)),
}


def refused(data: bytes) -> str:
    """What is said of it, in little memory."""
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(CkptError) as caught:
            loads(data, "here")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("pickle-unreadable", "here")
    assert peak < LITTLE
    return finding.actual


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_refused_before_the_unpickler_believes_it(name: str) -> None:
    """CPython also writes to stderr where the memory that a bytearray claims is not to be had."""
    assert refused(CLAIMS[name]).startswith("it claims ")


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_take_little_memory(name: str) -> None:
    refused(BOMBS[name])


def test_cpython_itself_believes_what_a_pickle_says() -> None:
    """The reason for all this; where it no longer holds, claims.py may go."""
    with pytest.raises(MemoryError):
        pickle.loads(CLAIMS["bytearray"])
    tracemalloc.start()
    pickle.loads(b"]r" + struct.pack("<I", 1 << 20) + b".")
    assert tracemalloc.get_traced_memory()[1] > 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize("field", ["size", "sizes", "offsets", "offset", "dtype", "fqn", "relative_path"])
@pytest.mark.parametrize("value", [RANGE, laughs(24)], ids=["range", "nested"])
def test_metadata_that_grows_when_it_is_looked_at(field: str, value: bytes) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(CkptError) as caught:
            parse(metadata_of(**{field: value}), "here")
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()
    (finding,) = caught.value.findings
    assert finding.code == "metadata-damaged"
    assert len(finding.actual) < 1000


CLASSES = [
    ("argparse", "Namespace"),
    ("types", "SimpleNamespace"),
    ("collections", "OrderedDict"),
    ("builtins", "list"),
    ("builtins", "range"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("megatron", "Config"),
]


@pytest.mark.parametrize(("module", "name"), CLASSES)
@pytest.mark.parametrize("slots", [True, False])
def test_a_class_is_not_changed_for_those_who_come_after(module: str, name: str, slots: bool) -> None:
    """BUILD sets attributes of whatever is on the stack: of an instance, or of a class."""
    values = op.attributes(polluted=op.integer(7))
    state = op.tuple_of((op.NONE, values)) if slots else values
    refused(op.program(op.glob(module, name) + state + b"b"))
    assert not hasattr(argparse.Namespace, "polluted")
    assert not hasattr(loads(op.program(op.glob(module, name)), "here")[0], "polluted")


def test_a_class_of_the_format_is_not_changed_either() -> None:
    for name in ("ChunkStorageMetadata", "MetadataIndex", "TensorProperties"):
        state = op.tuple_of((op.NONE, op.attributes(offset=op.integer(7))))
        with pytest.raises(CkptError) as caught:
            parse(op.program(op.glob(DCP, name) + state + b"b"), "here")
        assert caught.value.findings[0].code == "pickle-unreadable"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.binary().map(bytearray),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(value=values, protocol=st.integers(0, 5))
def test_what_pickle_writes_claims_no_more_than_it_holds(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert overclaimed(data) == ""
    assert overclaimed(pickletools.optimize(data)) == ""


@pytest.mark.parametrize("protocol", range(6))
def test_many_remembered_objects(protocol: int) -> None:
    """Memo indices of one, two and three bytes."""
    data = pickle.dumps([[] for _ in range(70_000)], protocol)
    assert overclaimed(data) == ""
    assert len(loads(data, "here")[0]) == 70_000


@given(value=values, protocol=st.integers(0, 5), at=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=9))
def test_a_length_that_pickletools_calls_too_long_is_one(value: Any, protocol: int, at: int, junk: bytes) -> None:
    data = bytearray(pickle.dumps(value, protocol))
    data[at % len(data) : at % len(data) + len(junk)] = junk
    claim = overclaimed(bytes(data))
    try:
        for _ in pickletools.genops(bytes(data)):
            pass
        assert "object of" not in claim
    except UnicodeDecodeError:
        return  # pickletools looks at contents on the way
    except ValueError as problem:
        if "remain" in str(problem):
            assert claim
