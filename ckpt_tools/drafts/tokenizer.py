"""The tokenizer beside a model: which token has which id, from the files of either library, without either library."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CkptError, error
from ..stores.hf_folder import read_json

FAST, PIECES, VOCAB, MERGES = "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"
SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"
TOKENS_HASH, PIECES_HASH = "tokens-1", "pieces-1"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`tokens` are texts by id, added tokens included; `hash` covers merges and scores as well. `source` is the file read."""

    tokens: Mapping[int, str]
    hash: str
    source: Path

    @property
    def size(self) -> int:
        """Rows of an embedding that tokens can reach."""
        return max(self.tokens, default=-1) + 1

    def first_difference(self, other: Tokenizer) -> tuple[int, str, str] | None:
        """(id, text here, text there) of the first id that means something else."""
        for number in sorted({*self.tokens, *other.tokens}):
            here, there = self.tokens.get(number, "(no token)"), other.tokens.get(number, "(no token)")
            if here != there:
                return number, here, there
        return None


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """From tokenizer.json, else vocab.json with merges.txt, else tokenizer.model; None if there is none of them."""
    if (folder / FAST).is_file():
        return _fast(folder / FAST)
    if (folder / VOCAB).is_file():
        return _slow(folder)
    if (folder / PIECES).is_file():
        return _sentencepiece(folder)
    return None


def _made(
    tokens: Mapping[int, str], merges: list[list[str]], scores: list[Any], added: set[int], source: Path
) -> Tokenizer:
    document = {
        "added": sorted(added),
        "merges": merges,
        "scores": scores,
        "vocab": [[number, tokens[number]] for number in sorted(tokens)],
    }
    raw = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    definition = PIECES_HASH if source.name == PIECES else TOKENS_HASH
    return Tokenizer(tokens, f"{definition}:{hashlib.sha256(raw).hexdigest()}", source)


def _fast(path: Path) -> Tokenizer:
    parsed = read_json(path)
    try:
        model, added = parsed["model"], {item["id"]: item["content"] for item in parsed.get("added_tokens") or ()}
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            tokens, scores = {number: token for token, number in vocab.items()}, []
        else:  # Unigram: a list of (token, score)
            tokens = {number: token for number, (token, _) in enumerate(vocab)}
            scores = [format(score, ".9g") for _, score in vocab]
        merges = [_pair(merge) for merge in model.get("merges") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _unreadable(path, "a model with a vocab, and added_tokens", repr(problem)) from problem
    return _made(_numbered(path, {**tokens, **added}), merges, scores, set(added), path)


def _numbered(path: Path, tokens: Mapping[Any, Any]) -> Mapping[int, str]:
    """Raises CkptError where ids are no numbers or tokens no text."""
    for number, token in tokens.items():
        if type(number) is not int or not isinstance(token, str):
            raise _unreadable(path, "text with whole numbers for ids", f"{token!r} with id {number!r}")
    return tokens


def _pair(merge: Any) -> list[str]:
    """tokenizers >= 0.20 writes pairs, older ones the two halves with a space between (no half holds one)."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return [left, right]


def _slow(folder: Path) -> Tokenizer:
    vocab = read_json(folder / VOCAB)
    added = _added_tokens(folder)
    try:
        lines = (folder / MERGES).read_text(encoding="utf-8").split("\n") if (folder / MERGES).is_file() else []
        merges = [_pair(line) for line in lines if line.strip() and not line.startswith("#version")]
        tokens = {int(number): token for token, number in vocab.items()}
    except (TypeError, ValueError) as problem:
        raise _unreadable(folder / MERGES, "ids by token, and two halves per line", repr(problem)) from problem
    return _made(_numbered(folder / VOCAB, {**tokens, **added}), merges, [], set(added), folder / VOCAB)


def _added_tokens(folder: Path) -> Mapping[int, str]:
    """Added tokens outside tokenizer.json: `added_tokens_decoder` of tokenizer_config.json, and added_tokens.json."""
    found: dict[int, str] = {}
    if (folder / ADDED).is_file():
        found |= {number: token for token, number in read_json(folder / ADDED).items()}
    if (folder / SETTINGS).is_file():
        decoder = read_json(folder / SETTINGS).get("added_tokens_decoder") or {}
        try:
            found |= {int(number): token["content"] for number, token in decoder.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            expected = "added_tokens_decoder with a content for every id"
            raise _unreadable(folder / SETTINGS, expected, repr(problem)) from problem
    return _numbered(folder / ADDED, found)


def _sentencepiece(folder: Path) -> Tokenizer:
    """The pieces of a SentencePiece model (sentencepiece_model.proto: field 1 = pieces of {piece, score, type})."""
    path = folder / PIECES
    pieces: list[tuple[str, float, int]] = []
    try:
        for number, value in _protobuf(path.read_bytes()):
            if number == 1 and isinstance(value, bytes):
                parts = dict(_protobuf(value))
                (score,) = struct.unpack("<f", parts.get(2, b"\0\0\0\0"))
                pieces.append((parts[1].decode("utf-8"), score, int(parts.get(3, 1))))
    except (KeyError, ValueError, IndexError, TypeError, struct.error, AttributeError) as problem:
        raise _unreadable(path, "a SentencePiece model", repr(problem)) from problem
    added = _added_tokens(folder)
    tokens = {number: piece for number, (piece, _, _) in enumerate(pieces)}
    return _made({**tokens, **added}, [], [[format(s, ".9g"), kind] for _, s, kind in pieces], set(added), path)


def _protobuf(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one message: integers, or the bytes of strings, messages and fixed numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[kind]
        if at + length > len(data):
            raise ValueError("the message ends early")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _unreadable(path: Path, expected: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "tokenizer-unreadable",
        f"cannot understand {path.name}",
        where=str(path),
        expected=expected,
        actual=actual,
        fix="fetch the tokenizer again",
    )
