"""Draft vocabularies that lie in a file of their own: lists of target ids, or d2t and t2d as trainers cache them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CkptError, Finding, NotFound, error
from ..report import Report
from .spec import D2T, EAGLE3, DraftSpec


def read_ids(path: Path) -> list[int]:
    """Target ids in the order of the draft's ids.

    From a list or tensor of ids, or a dictionary with `d2t` (offsets; SpecForge's vocabulary mapping), saved by torch, as
    JSON or as safetensors. Raises NotFound for anything else.
    """
    problem = "no such file"
    try:
        found = _ids(_loaded(path))
        if found is not None:
            return found
        problem = "neither a list of ids nor d2t"
    except (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError) as failure:
        problem = str(failure).splitlines()[0] if str(failure) else repr(failure)
    raise error(
        NotFound,
        "token-map-unreadable",
        "the token map is no list of ids",
        where=str(path),
        expected="a list of integers or a d2t, as torch.save, JSON or safetensors hold it",
        actual=problem,
        fix="check the file",
    )


def _loaded(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as problem:
            raise ValueError(str(problem)) from problem
    import torch

    return torch.load(path, weights_only=True)


def _ids(value: Any) -> list[int] | None:
    if isinstance(value, Mapping):
        offsets = _integers(value.get(D2T))
        return None if offsets is None else [number + offset for number, offset in enumerate(offsets)]
    return _integers(value)


def _integers(value: Any) -> list[int] | None:
    plain = value.tolist() if hasattr(value, "tolist") else value
    return plain if isinstance(plain, list) and all(type(number) is int for number in plain) else None


def with_ids(spec: DraftSpec, ids: list[int], where: Path) -> DraftSpec:
    """The head with its draft vocabulary from a side file; raises CkptError where the file is not the head's."""
    report = Report()
    for code, what, expected, actual in _problems(spec, ids):
        fix = "name the file that was written when this head was trained"
        report.error(code, what, where=str(where), expected=expected, actual=actual, fix=fix)
    report.raise_errors(CkptError)
    kept = tuple(finding for finding in spec.findings if finding.code != "d2t-missing")
    note = Finding("vocab-map-taken", "d2t and t2d are made from the vocabulary map", str(where), severity="note")
    return replace(spec, ids=tuple(ids), findings=(*kept, note))


def _problems(spec: DraftSpec, ids: list[int]) -> list[tuple[str, str, str, str]]:
    if spec.kind != EAGLE3 or D2T in spec.tensors:
        held = "a vocabulary map of its own" if spec.kind == EAGLE3 else "none"
        return [("vocab-map-not-needed", "this head takes no map from a file", "an EAGLE-3 head without d2t", held)]
    found = []
    if len(ids) != spec.draft_vocab_size:
        wanted = f"{spec.draft_vocab_size} ids, as lm_head has rows"
        found.append(("d2t-length", "map and head disagree about the draft vocabulary", wanted, str(len(ids))))
    if outside := [number for number in ids if not 0 <= number < spec.vocab_size]:
        what, wanted = "ids outside of the target's vocabulary", f"ids from 0 to {spec.vocab_size - 1}"
        found.append(("d2t-range", what, wanted, str(max(outside, key=abs))))
    if len(set(ids)) != len(ids):
        found.append(("d2t-duplicates", "ids twice", "every target id once", f"{len(set(ids))} distinct of {len(ids)}"))
    mask = spec.t2d()
    if mask is not None and {number for number, flag in enumerate(mask) if flag} != set(ids):
        found.append(("t2d-disagrees", "the head's t2d marks other ids", "the ids that t2d marks", f"{len(ids)} ids"))
    return found
