"""Is this the target that the head was made for? Against the identity that draft_manifest.json records."""

from __future__ import annotations

from pathlib import Path

from ...errors import Finding
from ...families import family_of
from ...families.config import Fields
from ...model import open_model
from ...stores.torch_dist.reader import is_torch_dist
from ..identity import (
    FULL,
    Identity,
    Mismatch,
    arch_fields,
    arch_hash,
    arch_mismatches,
    hash_mismatches,
    identify,
    weights_hash,
)
from ..recorded import MANIFEST, recorded_target
from ..tokenizer import read_tokenizer
from .pair import Pair, open_target

NAME = "recorded target"
FIX = {
    "tokenizer": "name the target that the head was trained for",
    "weights": "measure again with `ckpt-tools smoke`, or tune the head for these weights",
}


def check_origin(pair: Pair) -> None:
    """L2: another architecture is an error; moved weights are a warning, an error with --strict-target."""
    kept = recorded_target(pair.spec.source)
    strict = "error" if pair.rules.strict_target else "note"
    if not kept.arch_hash:
        pair.found(
            NAME,
            Finding(
                "target-not-recorded",
                "the head does not say which target it was made for",
                str(pair.spec.source / MANIFEST),
                "the identity of its target",
                "none",
                "export-draft and `registry add` record it",
                strict,
            ),
        )
        return
    found = _identity(pair, kept.weights_hash)
    differing = arch_mismatches(kept, found)
    if differing:
        pair.found(NAME, _changed(pair, "arch", differing))
    for mismatch in hash_mismatches(kept, found):
        pair.found(NAME, _changed(pair, mismatch.field, [mismatch]))
        differing.append(mismatch)
    if kept.weights_hash and not found.weights_hash:
        pair.found(
            NAME,
            Finding(
                "target-weights-unchecked",
                "the target's weights are not here to compare",
                str(pair.target.root),
                kept.weights_hash,
                "unknown",
                "give a target with its weights",
                "error" if pair.rules.strict_target else "warning",
            ),
        )
    elif not differing:
        compared = [
            name
            for name, value in (
                ("architecture", found.arch_hash),
                ("tokenizer", found.tokenizer_hash),
                ("weights", found.weights_hash),
            )
            if value
        ]
        pair.passed(NAME, kept.arch_hash[:19], f"{', '.join(compared)} equal")


def _identity(pair: Pair, weights: str) -> Identity:
    """Of the target as it is; weights are hashed as the recorded hash was made."""
    target, tokenizer = pair.target, pair.target_tokenizer
    known = target.family is not None and target.dims is not None
    arch = arch_fields(target.family, target.dims) if target.family and target.dims else {}
    made = weights_hash(pair.model, full=weights.startswith(FULL)) if weights and pair.model else ""
    return Identity(arch, arch_hash(arch) if known else "", tokenizer.hash if tokenizer else "", made)


def _changed(pair: Pair, what: str, differing: list[Mismatch]) -> Finding:
    if what == "arch":
        return Finding(
            "target-arch-changed",
            f"the head was made for another architecture: {', '.join(mismatch.field for mismatch in differing)}",
            str(pair.target.config_path),
            ", ".join(f"{mismatch.field} {mismatch.expected}" for mismatch in differing),
            ", ".join(f"{mismatch.field} {mismatch.actual}" for mismatch in differing),
            "name the target that the head was trained for",
        )
    strict = what != "weights" or pair.rules.strict_target
    return Finding(
        "target-weights-changed" if what == "weights" else "target-tokenizer-changed",
        f"the target's {what} {'are' if what == 'weights' else 'is'} not what the head was made for",
        str(pair.target.root),
        differing[0].expected,
        differing[0].actual,
        FIX[what],
        "error" if strict else "warning",
    )


def identify_target(path: Path, weights: bool = True) -> Identity:
    """The identity of a target, its weights sampled where they are here and wanted.

    Raises CkptError for one that no family knows.
    """
    if is_torch_dist(path) or any(path.glob("*.safetensors")):
        return identify(open_model(path), "sampled" if weights else "")
    target = open_target(path)
    fields = Fields(target.config, str(target.config_path))
    family = family_of(fields)
    arch = arch_fields(family, family.dims(fields))
    fields.done()
    tokenizer = read_tokenizer(target.root)
    return Identity(arch, arch_hash(arch), tokenizer.hash if tokenizer else "")
