"""What a checkpoint is: format, family, dimensions, tensors folded by layer, and everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from .compare import duplicate_difference, duplicate_finding
from .errors import CkptError, Finding
from .families.config import Fields
from .mapping.arrangement import Shape
from .model import HF_COPY, Model, describe, open_store
from .refs.ranges import hashes_of
from .report import Outcome, ranges
from .stores.base import Tensor
from .stores.checksums import check as check_sums
from .stores.hf_folder import HfFolder
from .stores.sidecars import MANIFEST
from .stores.torch_dist.metadata import Entry
from .stores.torch_dist.reader import TorchDist, is_training_state, locate

INDEX = re.compile(r"(?<![^.])([0-9]+)(?![^.])")  # a whole segment of a name


@dataclass(frozen=True, slots=True)
class Folded:
    """Tensors that differ only in indices of their name."""

    name: str
    dtype: str
    shape: Shape
    count: int
    nbytes: int


@dataclass(slots=True)
class Inspection:
    """`format` is "hf" or "torch-dist"; `family` is "" where no table knows the model.

    `tied_from` is the level of config.json that states whether embedding and head are tied. `identity` are the hashes
    that say whether two checkpoints are the same model. `checksums` counts the files that were compared with their own.
    """

    path: str
    format: str
    family: str = ""
    dims: dict[str, Any] = field(default_factory=dict)
    tied_from: str = ""
    mtp_declared: int | None = None
    mtp_found: int | None = None
    tensors: int = 0
    nbytes: int = 0
    files: int = 0
    dtypes: dict[str, int] = field(default_factory=dict)
    folded: list[Folded] = field(default_factory=list)
    variants: dict[str, str] = field(default_factory=dict)
    padded_vocab_size: int | None = None
    training_state: int = 0
    checked: bool = False
    checksums: int = 0
    identity: dict[str, str] = field(default_factory=dict)


Identify = Callable[[Model, bool], Mapping[str, str]]


def inspect_checkpoint(
    path: Path, hf_config: Path | None = None, check: bool = False, identify: Identify | None = None
) -> Outcome[Inspection]:
    """Look at headers and metadata; with `check` also at every chunk's header and at tensors stored twice.

    `identify` makes the hashes of a model by name, those of its weights (which read tensor bytes) only if told so.

    A checkpoint that is broken or unknown is still described; only a path that is no checkpoint raises (NotFound).
    """
    store = open_store(path)
    found = Inspection(str(store.root), "hf" if isinstance(store, HfFolder) else "torch-dist", checked=check)
    _count(found, store)
    try:
        model = describe(store, hf_config)
    except CkptError as problem:
        return Outcome(found, list(dict.fromkeys([*store.report.findings, *problem.findings])))
    _identify(found, model)
    if check and not store.report.errors:
        _check_deep(model)
    if check:
        folder = store.root if isinstance(store, HfFolder) else store.root / HF_COPY
        found.checksums = check_sums(store.root, folder / MANIFEST, store.report, hashes_of(store.root))
    if identify is not None:
        try:
            found.identity = dict(identify(model, check and not store.report.errors))
        except CkptError as problem:
            store.report.findings += problem.findings
    return Outcome(found, store.report.findings)


def _count(found: Inspection, store: HfFolder | TorchDist) -> None:
    if isinstance(store, HfFolder):
        tensors: list[Tensor] | list[Entry] = list(store.tensors.values())
        found.files = len(store.files)
    else:
        tensors = [entry for name, entry in store.contents.tensors.items() if not is_training_state(name)]
        found.files = len({box.stored.file for entry in tensors for box in entry.boxes})
        found.training_state = len(store.training_keys)
    found.folded = fold((t.name, t.dtype, t.shape) for t in tensors)
    found.tensors = len(tensors)
    found.nbytes = sum(folded.nbytes for folded in found.folded)
    for folded in found.folded:
        found.dtypes[folded.dtype] = found.dtypes.get(folded.dtype, 0) + folded.nbytes


def _identify(found: Inspection, model: Model) -> None:
    found.family = model.family.name
    found.dims = asdict(model.dims)
    found.tied_from, _ = Fields(model.config, str(model.config_path)).lookup("tie_word_embeddings")
    found.mtp_declared, found.mtp_found = model.declared, model.mtp
    if model.detected is not None:
        found.variants = {kind: " and ".join(values) for kind, values in model.detected.variants.items() if values}
        found.padded_vocab_size = model.stored_vocab
    if model.declared == 0 and model.family.undeclared_mtp and model.mtp:
        model.store.report.note(
            "mtp-uncounted",
            f"no config field of {model.family.name} counts MTP layers; the keys show {model.mtp}",
            where=str(model.config_path),
        )
    elif model.declared != model.mtp:
        claimed = model.declared > model.mtp
        finding = Finding(
            "config-claims-mtp" if claimed else "mtp-undeclared",
            f"the config declares {model.declared} MTP layers and the keys show {model.mtp}",
            where=str(model.config_path),
            expected="the same count",
            actual=f"{model.declared} declared, {model.mtp} found",
            fix="put the head back, or set the count to what is there (`convert --mtp drop` writes 0)"
            if claimed
            else f"sound without its MTP layers; --mtp {model.mtp} converts them, --mtp-layers {model.mtp} extracts them",
            severity="error" if claimed else "warning",
        )
        model.store.report.findings.append(finding)


def _check_deep(model: Model) -> None:
    report = model.store.report
    try:
        if isinstance(model.store, TorchDist):
            locate(model.store, model.store.model_keys)
    except CkptError as problem:
        report.findings += problem.findings
    for name, original in model.stored_duplicates():
        worst = duplicate_difference(model, name, original)
        if worst is not None:
            report.findings.append(duplicate_finding(name, original, worst, str(model.store.root)))


def fold(tensors: Iterable[tuple[str, str, Shape]]) -> list[Folded]:
    """Group tensors whose names differ only in numeric segments and whose dtype and shape agree."""
    groups: dict[tuple[tuple[str, ...], str, Shape], list[list[str]]] = {}
    for name, dtype, shape in tensors:
        pieces = INDEX.split(name)  # text, number, text, ..., text
        groups.setdefault((tuple(pieces[::2]), dtype, shape), []).append(pieces[1::2])
    folded = []
    for ((first, *texts), dtype, shape), indices in groups.items():
        columns = (ranges(map(int, set(column))) for column in zip(*indices, strict=True))
        name = first + "".join(chain.from_iterable(zip(columns, texts, strict=True)))
        single = Tensor("", dtype, shape, ()).nbytes
        folded.append(Folded(name, dtype, shape, len(indices), single * len(indices)))
    return folded
