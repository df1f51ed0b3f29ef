"""Identity of a tokenizer: equal for the same model however it is stored, different as soon as it is another one.

The worked example of docs/identity.md is computed here from a literal document, without ckpt_tools.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.tokenizer import read_tokenizer
from ckpt_tools.errors import CkptError

from .identities import DOCS, sha

TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "added_tokens": [{"id": 3, "content": "<end>", "special": True}],
}
TOKENIZER_DOCUMENT = '{"added":[3],"merges":[["a","b"]],"scores":[],"vocab":[[0,"a"],[1,"b"],[2,"ab"],[3,"<end>"]]}'


def fast(folder: Path, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | changes))
    found = read_tokenizer(folder)
    assert found is not None
    return found.hash


def test_the_worked_example_of_the_tokenizer(tmp_path: Path) -> None:
    assert fast(tmp_path) == "tokens-1:" + sha(TOKENIZER_DOCUMENT)
    assert TOKENIZER_DOCUMENT in DOCS.read_text() and sha(TOKENIZER_DOCUMENT) in DOCS.read_text()


def test_what_does_not_change_a_tokenizer(tmp_path: Path) -> None:
    """Older merges, added tokens in the vocabulary too, pre-tokenizer settings, order."""
    vocab = {"<end>": 3, "ab": 2, "b": 1, "a": 0}
    model = {"type": "BPE", "vocab": vocab, "merges": ["a b"], "ignore_merges": False}
    assert fast(tmp_path / "new") == fast(tmp_path / "old", model=model, truncation=None)


def test_the_slow_files_are_the_same_tokenizer(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (slow / "merges.txt").write_text("#version: 0.2\na b\n")
    decoder = {"3": {"content": "<end>", "special": True}}
    (slow / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    found = read_tokenizer(slow)
    assert found is not None and found.hash == fast(tmp_path / "fast")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"vocab": {"a": 0, "c": 1, "ab": 2}, "merges": [["a", "b"]]}},
        {"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []}},
        {"added_tokens": [{"id": 3, "content": "<stop>"}]},
        {"added_tokens": []},
    ],
)
def test_another_tokenizer_is_another_hash(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert fast(tmp_path / "a") != fast(tmp_path / "b", **changes)


def message(*fields: tuple[int, bytes | int | float]) -> bytes:
    """A protobuf message: bytes, float32 or a small integer."""
    made = b""
    for number, value in fields:
        if isinstance(value, bytes):
            made += bytes([number << 3 | 2, len(value)]) + value
        elif isinstance(value, float):
            made += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            made += bytes([number << 3, value])
    return made


def test_sentencepiece(tmp_path: Path) -> None:
    pieces = [message((1, b"<unk>"), (2, 0.0), (3, 2)), message((1, "▁a".encode()), (2, -1.5))]
    (tmp_path / "tokenizer.model").write_bytes(
        b"".join(message((1, piece)) for piece in pieces) + message((2, b"spec"))
    )
    found = read_tokenizer(tmp_path)
    assert found is not None and dict(found.tokens) == {0: "<unk>", 1: "▁a"} and found.size == 2
    document = '{"added":[],"merges":[],"scores":[["0",2],["-1.5",1]],"vocab":[[0,"<unk>"],[1,"\\u2581a"]]}'
    assert found.hash == "pieces-1:" + sha(document)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff")
    with pytest.raises(CkptError, match="tokenizer-unreadable"):
        read_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path) is None
