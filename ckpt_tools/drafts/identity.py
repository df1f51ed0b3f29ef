"""Who a target is: hashes of its architecture, its tokenizer and its weights, equal however the same model is stored.

docs/identity.md defines every hash byte for byte. A hash is `<definition>:<hex sha256>`; hashes of different definitions
say nothing about each other.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from ..compare import Logical
from ..engine.moves import Move, some_rows
from ..engine.view import View
from ..families.base import Family
from ..families.dims import Dims
from ..model import Model
from .tokenizer import read_tokenizer

ARCH, SAMPLED, FULL = "arch-1", "weights-sampled-1", "weights-full-1"
SAMPLES, SAMPLE = 4, 4096
NOT_IDENTITY = frozenset(("max_position_embeddings", "moe.balancing", "rope.partial_rotary_factor", "unstated"))


@dataclass(frozen=True, slots=True)
class Identity:
    """`arch` are the fields that `arch_hash` is made of; a hash is "" where it was not asked for or cannot be made."""

    arch: Mapping[str, Any] = field(default_factory=dict)
    arch_hash: str = ""
    tokenizer_hash: str = ""
    weights_hash: str = ""


class Mismatch(NamedTuple):
    """A field (`hidden_size`, `tokenizer`, `weights`) in which two identities differ."""

    field: str
    expected: str
    actual: str


def identify(model: Model, weights: str = "") -> Identity:
    """The identity of a model; `weights` is "" (none), "sampled" or "full"."""
    arch = arch_fields(model.family, model.dims)
    tokenizer = read_tokenizer(model.config_path.parent)
    return Identity(
        arch=arch,
        arch_hash=arch_hash(arch),
        tokenizer_hash=tokenizer.hash if tokenizer else "",
        weights_hash=weights_hash(model, full=weights == "full") if weights else "",
    )


def identity_hashes(model: Model, weights: bool) -> dict[str, str]:
    """The hashes of a model by name, without those that cannot be made; weights are sampled on request."""
    found = identify(model, "sampled" if weights else "")
    every = {"arch": found.arch_hash, "tokenizer": found.tokenizer_hash, "weights": found.weights_hash}
    return {name: value for name, value in every.items() if value}


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, no spaces and nothing but ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def labelled(definition: str, value: Any) -> str:
    return f"{definition}:{hashlib.sha256(canonical(value)).hexdigest()}"


# --- architecture


def arch_fields(family: Family, dims: Dims) -> dict[str, Any]:
    """The dimensions that make two models the same architecture, as a flat mapping; fields at their default are left out."""
    return {"family": family.name, **dict(_flat("", dims))}


def arch_hash(arch: Mapping[str, Any]) -> str:
    return labelled(ARCH, dict(arch))


def _flat(prefix: str, values: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(values):
        name, value = prefix + each.name, getattr(values, each.name)
        if name in NOT_IDENTITY or (each.default is not MISSING and value == each.default):
            continue
        if name == "rope.scaling":
            yield from ((f"rope.{key}", scalar(item)) for key, item in value if f"rope.{key}" not in NOT_IDENTITY)
        elif is_dataclass(value):
            yield from _flat(f"{name}.", value)
        else:
            yield (
                name,
                list(value) if isinstance(value, tuple) else decimal(value) if isinstance(value, float) else value,
            )


def decimal(value: float) -> str:
    """A number as configs and servers know it: rounded to float32, with the nine digits that tell every float32 apart."""
    return format(struct.unpack("<f", struct.pack("<f", value))[0], ".9g")


def scalar(value: Any) -> Any:
    """A field of rope scaling: writers disagree on 32 and 32.0, so every number is a float."""
    if isinstance(value, list):
        return [scalar(item) for item in value]
    return decimal(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


# --- weights


def weights_hash(model: Model, full: bool = False) -> str:
    """Over the logical Hugging Face tensors of the body; MTP layers, duplicates and other towers are left out."""
    logical = Logical(model, mtp=0)
    try:
        digests = [
            [name, list(tensor.shape), tensor_digest(logical.view(name), full)]
            for name, tensor in sorted(logical.tensors.items())
        ]
    finally:
        logical.close()
    return labelled(FULL if full else SAMPLED, digests)


def tensor_digest(view: View, full: bool) -> str:
    """sha256 over every byte range: start and length (8 bytes each, little-endian), then the bytes."""
    digest = hashlib.sha256()
    if full:
        digest.update(struct.pack("<QQ", 0, view.tensor.nbytes))
        for start, stop in view.row_tiles():
            digest.update(view.read(start, stop))
        return digest.hexdigest()
    for start, stop in sample_ranges(view.tensor.nbytes):
        digest.update(struct.pack("<QQ", start, stop - start))
        digest.update(read_range(view, start, stop))
    return digest.hexdigest()


def sample_ranges(nbytes: int) -> list[tuple[int, int]]:
    """The bytes that are looked at: all of a small tensor, else evenly spaced ranges from the first to the last."""
    if nbytes <= SAMPLES * SAMPLE:
        return [(0, nbytes)]
    starts = [(nbytes - SAMPLE) * i // (SAMPLES - 1) for i in range(SAMPLES)]
    return [(start, start + SAMPLE) for start in starts]


def read_range(view: View, start: int, stop: int) -> bytes:
    """Any byte range of a view, read as the matrix rows that hold it (a view reads whole rows)."""
    shape, itemsize = view.tensor.shape, view.tensor.itemsize
    row = max(1, (shape[-1] if shape else 1) * itemsize)
    low, high = start // row * row, min(-(-stop // row) * row, view.tensor.nbytes)
    single = View(view.tensor, list(_single_rows(view.moves, low, high)), view.handles)
    return bytes(single.read(low, high)[start - low : stop - low])


def _single_rows(moves: Iterable[Move], low: int, high: int) -> Iterator[Move]:
    """The rows of moves that meet a byte range, each as a move of its own."""
    for move in moves:
        first = max(0, (low - move.target - move.target_width) // move.target_stride + 1) if move.rows > 1 else 0
        for number in range(first, move.rows):
            target = move.target + number * move.target_stride
            if target >= high:
                break
            if target + move.target_width > low:
                yield some_rows(move, number, 1)


def mismatches(recorded: Identity, found: Identity) -> list[Mismatch]:
    """Where `found` is not what was recorded; hashes that are absent or of different definitions are not compared."""
    return [*arch_mismatches(recorded, found), *hash_mismatches(recorded, found)]


def arch_mismatches(recorded: Identity, found: Identity) -> list[Mismatch]:
    """Field by field, so that the message can say which."""
    if not comparable(recorded.arch_hash, found.arch_hash) or recorded.arch_hash == found.arch_hash:
        return []
    names = [name for name in sorted({*recorded.arch, *found.arch}) if recorded.arch.get(name) != found.arch.get(name)]
    named = [Mismatch(name, shown(recorded.arch.get(name)), shown(found.arch.get(name))) for name in names]
    return named or [Mismatch("arch", recorded.arch_hash, found.arch_hash)]


def hash_mismatches(recorded: Identity, found: Identity) -> list[Mismatch]:
    both = (
        ("tokenizer", recorded.tokenizer_hash, found.tokenizer_hash),
        ("weights", recorded.weights_hash, found.weights_hash),
    )
    return [Mismatch(name, a, b) for name, a, b in both if comparable(a, b) and a != b]


def comparable(a: str, b: str) -> bool:
    """Whether two hashes are of one definition."""
    return bool(a and b) and a.partition(":")[0] == b.partition(":")[0]


def shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def record(identity: Identity) -> dict[str, Any]:
    """As manifests keep it."""
    return asdict(identity) | {"arch": dict(identity.arch)}


def recorded(kept: Mapping[str, Any]) -> Identity:
    """What `record` made; fields that a manifest does not have are absent."""
    arch = kept.get("arch")
    hashes = {name: str(kept.get(name) or "") for name in ("arch_hash", "tokenizer_hash", "weights_hash")}
    return Identity(arch=arch if isinstance(arch, Mapping) else {}, **hashes)
