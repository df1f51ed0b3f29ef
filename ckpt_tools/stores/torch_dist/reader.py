"""Opening a torch-dist directory: which iteration, what it holds, where the bytes are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ...errors import CkptError, Finding, NotFound, error
from ...refs.edges import fill_edges
from ...report import Report, listed
from ..base import Chunk, Source, Tensor, is_file, tile_exactly
from .metadata import Contents, Entry, Stored, parse
from .payloads import read_object, read_payload

TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
METADATA = ".metadata"
COMMON = "common.pt"
COMMON_OBJECT = "common_state/shard_0_1"  # mcore 0.19 and later
TRAINING_STATE = ("optimizer", "rng_state", "rerun_state_machine_state", "opt_param_scheduler")
CHAINED = "chained"  # chained_0.optimizer..., chained_1.optimizer...
EXTRA_STATE = "_extra_state"


@dataclass(slots=True)
class TorchDist(Source):
    """`tensors` is filled by `locate`; `contents` names everything. `common` are the plain values of the common state."""

    contents: Contents
    common: dict[str, Any]
    report: Report

    @property
    def model_keys(self) -> set[str]:
        return {name for name in self.contents.tensors if not is_training_state(name)}

    @property
    def training_keys(self) -> set[str]:
        return {name for name in (*self.contents.tensors, *self.contents.objects) if is_training_state(name)}

    @property
    def extra_states(self) -> set[str]:
        """Modules (by key) for which an `_extra_state` object is stored."""
        found = (name.rpartition("/shard_")[0].rpartition(".") for name in self.contents.objects)
        return {module for module, _, last in found if last == EXTRA_STATE}

    def argument(self, name: str) -> Any:
        """A training argument from `common["args"]`, or None."""
        return getattr(self.common.get("args"), name, None)


def is_training_state(key: str) -> bool:
    """Optimizer, RNG and scheduler state of a training iteration: never part of the model."""
    root = key.partition("/")[0].partition(".")[0]
    return root in TRAINING_STATE or root.partition("_")[0] == CHAINED


def is_torch_dist(path: Path) -> bool:
    return (path / METADATA).is_file() or (path / TRACKER).is_file() or bool(_iterations(path))


def _iterations(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(child for child in path.iterdir() if (child / METADATA).is_file())


def iteration_directory(path: Path, report: Report) -> Path:
    """The directory with `.metadata`: `path`, or the iteration that the tracker names; raises NotFound."""
    if (path / METADATA).is_file():
        return path
    here = _iterations(path)
    have = listed(child.name for child in here) or "no iteration directory"
    tracker = path / TRACKER
    if tracker.is_file():
        said = tracker.read_text(encoding="utf-8", errors="replace").strip()
        wanted = path / _directory_name(said)
        if wanted in here:
            return wanted
        raise error(
            NotFound,
            "iteration-not-found",
            f"the tracker names {said!r}, which is not there",
            where=str(tracker),
            expected=f"{wanted.name} with {METADATA}",
            actual=have,
            fix=f"correct {TRACKER}, or name one directory",
        )
    if len(here) == 1:
        report.warn("tracker-absent", f"no {TRACKER}; the only iteration {here[0].name} is used", where=str(path))
        return here[0]
    raise error(
        NotFound,
        "iteration-not-found",
        f"no {TRACKER} says which iteration to use",
        where=str(path),
        expected="a tracker file, or one iteration directory",
        actual=have,
        fix="name one of the directories",
    )


def _directory_name(said: str) -> str:
    """`release`, or Megatron's name for an iteration number."""
    try:
        return f"iter_{int(said):07d}"
    except ValueError:
        return said


def open_checkpoint(path: Path) -> TorchDist:
    """Read `.metadata` and the common state and check file sizes and tilings; no tensor bytes, no code from pickles."""
    report = Report()
    root = iteration_directory(path, report)
    where = str(root / METADATA)
    contents, foreign = parse((root / METADATA).read_bytes(), where)
    checkpoint = TorchDist(root, [], {}, contents, {}, report)
    _check_files(checkpoint)
    for entry in contents.tensors.values():
        if not is_training_state(entry.name):
            _check_tiling(entry, where, report)
    _read_common(checkpoint, report)
    if skipped := [name for name in foreign if name.partition(".")[0] != "torch"]:
        report.note("foreign-classes", "classes in .metadata were not imported", where=where, actual=listed(skipped))
    return checkpoint


def _check_files(checkpoint: TorchDist) -> None:
    ends: dict[str, int] = {}
    places = [box.stored for entry in checkpoint.contents.tensors.values() for box in entry.boxes]
    for place in (*places, *checkpoint.contents.objects.values()):
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
    for file, end in sorted(ends.items()):
        path = checkpoint.root / file
        size = path.stat().st_size if is_file(path) else None
        if size is None or size < end:
            checkpoint.report.error(
                "shard-missing" if size is None else "file-truncated",
                f"{file} is {'not there' if size is None else 'too short'}",
                where=str(path),
                expected=f"at least {end:,} bytes",
                actual="no such file" if size is None else f"{size:,} bytes",
                fix="incomplete copy? fetch the file again",
            )


def _check_tiling(entry: Entry, where: str, report: Report) -> None:
    """Chunks must cover the tensor: Megatron itself does not notice a missing one and keeps its random values."""
    if not tile_exactly([(box.origin, box.shape) for box in entry.boxes], entry.shape):
        covered = sum(prod(box.shape) for box in entry.boxes)
        report.error(
            "chunks-do-not-tile",
            f"the chunks of {entry.name} do not cover it exactly once",
            where=where,
            expected=f"{prod(entry.shape):,} elements of {list(entry.shape)}",
            actual=f"{covered:,} elements in {len(entry.boxes)} chunks{', some twice' * (covered >= prod(entry.shape))}",
            fix="the checkpoint is incomplete; save it again",
        )


def _read_common(checkpoint: TorchDist, report: Report) -> None:
    """`common.pt`, or the object that mcore 0.19 and later store instead."""
    path = checkpoint.root / COMMON
    place = Stored(COMMON, 0, path.stat().st_size) if path.is_file() else checkpoint.contents.objects.get(COMMON_OBJECT)
    if place is None:
        report.note("common-absent", "no common state: training arguments are unknown", where=str(checkpoint.root))
        return
    if place.file != COMMON and report.errors:
        return  # its file may be one of those that are not there
    fill_edges(checkpoint.root, [place], whole=True)
    with (checkpoint.root / place.file).open("rb") as stream:
        value, foreign = read_object(stream.fileno(), place.offset, place.length, str(checkpoint.root / place.file))
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    checkpoint.common = value if isinstance(value, dict) else {}
    if skipped := [name for name in foreign if name.partition(".")[0] != "torch"]:
        report.note(
            "foreign-classes", "classes in the common state were not imported", where=str(path), actual=listed(skipped)
        )


def locate(checkpoint: TorchDist, names: set[str]) -> None:
    """Fill `tensors` for `names`: read each chunk's frame header and check it against `.metadata`."""
    fill_edges(checkpoint.root, (box.stored for name in names for box in checkpoint.contents.tensors[name].boxes))
    numbers: dict[str, int] = {}
    handles: dict[str, int] = {}
    paths: dict[str, str] = {}  # as text: joining one for every chunk takes as long as reading it
    findings: list[Finding] = []
    try:
        for name in sorted(names):
            entry = checkpoint.contents.tensors[name]
            chunks = []
            for box in entry.boxes:
                file = box.stored.file
                if file not in handles:
                    handles[file] = os.open(checkpoint.root / file, os.O_RDONLY)
                    numbers[file] = len(checkpoint.files)
                    checkpoint.files.append(checkpoint.root / file)
                    paths[file] = str(checkpoint.root / file)
                where = f"{paths[file]}: {name} at {list(box.origin)}"
                payload = read_payload(handles[file], box.stored.offset, box.stored.length, where)
                if (payload.dtype, payload.shape) != (entry.dtype, box.shape):
                    findings.append(
                        Finding(
                            "chunk-differs",
                            "a chunk is not what .metadata says",
                            where=where,
                            expected=f"{entry.dtype} {list(box.shape)}",
                            actual=f"{payload.dtype} {list(payload.shape)}",
                            fix="the checkpoint is damaged; save it again",
                        )
                    )
                chunks.append(Chunk(numbers[file], payload.offset, box.origin, box.shape))
            checkpoint.tensors[name] = Tensor(name, entry.dtype, entry.shape, tuple(chunks))
    finally:
        for handle in handles.values():
            os.close(handle)
    if findings:
        raise CkptError(*findings)
