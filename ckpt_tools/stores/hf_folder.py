"""A Hugging Face folder: config.json and safetensors files, with or without an index."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CkptError, NotFound, error
from ..mapping.arrangement import Shape
from ..report import Report, listed
from .base import Chunk, Image, Literal, Source, Tensor
from .safetensors_header import ALIGNMENT, PAGE, BadHeader, header_bytes, read_header

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOWHERE: Mapping[str, int] = {}
MAX_SHARDS = 100_000  # a file name that says more is no shard
GHOST = "index-ghost"
REINDEX = "write the index again from the headers: `ckpt-tools inspect --write-index`"
CURED_BY_INDEX = frozenset(("index-invalid", "index-omits", "index-wrong-shard"))


@dataclass(slots=True)
class HfFolder(Source):
    """`config` is None when the folder has none; `report` holds every integrity finding.

    `ghosts` are tensors that the index names and no file holds.
    """

    config: dict[str, Any] | None
    report: Report
    ghosts: set[str] = field(default_factory=set)


def is_hf_folder(path: Path) -> bool:
    return (path / CONFIG).is_file() or (path / INDEX).is_file() or any(path.glob("*.safetensors"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises NotFound for a missing, unreadable or malformed file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise error(
            NotFound,
            "json-unreadable",
            f"cannot read {path.name}",
            where=str(path),
            expected="a JSON object",
            actual=str(problem),
            fix="restore the file",
        ) from problem
    if not isinstance(value, dict):
        raise error(
            NotFound,
            "json-unreadable",
            f"{path.name} is not an object",
            where=str(path),
            expected="a JSON object",
            actual=str(value)[:60],
            fix="restore the file",
        )
    return value


def open_folder(root: Path) -> HfFolder:
    """Read config, index and headers, check them against each other and against the file sizes. No tensor bytes."""
    report = Report()
    config = read_json(root / CONFIG) if (root / CONFIG).is_file() else None
    paths = sorted(path for path in root.glob("*.safetensors") if path.is_file())
    folder = HfFolder(root, paths, {}, config, report)
    holders: dict[str, str] = {}
    again: dict[str, list[str]] = {}
    for number, path in enumerate(paths):
        try:
            tensors = read_header(path, number)
        except BadHeader as problem:
            report.findings.append(problem.finding)
            continue
        for name in holders.keys() & tensors.keys():
            again.setdefault(name, [holders[name]]).append(path.name)
        holders |= dict.fromkeys(tensors, path.name)
        folder.tensors |= tensors
    _check_twice(root, again, report)
    if (root / INDEX).is_file():
        _check_index(root, holders, again, folder, report)
    else:
        _check_numbering(root, paths, report)
    return folder


def _check_twice(root: Path, twice: dict[str, list[str]], report: Report) -> None:
    if twice:
        report.error(
            "tensor-twice",
            f"{len(twice)} tensors lie in more than one file",
            where=str(root),
            expected="every tensor once",
            actual=listed(f"{name} in {' and '.join(files)}" for name, files in twice.items()),
            fix="remove the file that does not belong to this checkpoint",
        )


def _check_index(
    root: Path, holders: dict[str, str], again: dict[str, list[str]], folder: HfFolder, report: Report
) -> None:
    index = read_json(root / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        report.error(
            "index-invalid",
            "the index has no weight_map of names to files",
            where=str(root / INDEX),
            expected='{"weight_map": {tensor: file}}',
            actual=str(weight_map)[:60],
            fix=REINDEX,
        )
        return
    for file in sorted(set(weight_map.values()) - {path.name for path in folder.files}):
        report.error(
            "shard-missing",
            f"the index names {file}, which is not there",
            where=str(root),
            expected=f"{file} with {Counter(weight_map.values())[file]} tensors",
            actual="no such file",
            fix="incomplete download? fetch the shard again",
        )
    present = {path.name for path in folder.files}
    broken = {Path(finding.where).name for finding in report.findings if finding.where}
    for name, file in sorted(weight_map.items() - holders.items()):
        if file not in present or file in broken or file in again.get(name, ()):
            continue
        elsewhere = holders.get(name)
        if elsewhere is None:
            folder.ghosts.add(name)
        report.error(
            "index-wrong-shard" if elsewhere else GHOST,
            f"{name} is not in the shard that the index names",
            where=f"{root / INDEX}: {file}",
            expected=f"{name} in {file}",
            actual=f"found in {elsewhere}" if elsewhere else "in no file",
            fix=REINDEX
            if elsewhere
            else "fetch the checkpoint again; if the tensor is meant to be gone, delete the index",
        )
    if omitted := sorted(holders.keys() - weight_map.keys()):
        files = sorted({holders[name] for name in omitted})
        report.error(
            "index-omits",
            f"{len(omitted)} tensors in {listed(files)} are not in the index",
            where=str(root / INDEX),
            expected="every tensor of every file",
            actual=f"absent: {listed(omitted)}",
            fix=f"{REINDEX}, or move files that do not belong to this checkpoint away",
        )
    _check_total(root, index, folder, report)


def _check_total(root: Path, index: dict[str, Any], folder: HfFolder, report: Report) -> None:
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(tensor.nbytes for tensor in folder.tensors.values())
    if stated is not None and stated != total and not report.errors:
        report.warn(
            "total-size",
            "metadata.total_size is not the sum of the tensors",
            where=str(root / INDEX),
            expected=f"{total}",
            actual=f"{stated}",
            fix=f"harmless for loading; {REINDEX}",
        )


def _check_numbering(root: Path, paths: list[Path], report: Report) -> None:
    """Files named ...-00001-of-00004 without an index must all be there."""
    for path in paths:
        head, _, total = path.stem.rpartition("-of-")
        prefix, _, number = head.rpartition("-")
        if not (number.isdecimal() and total.isdecimal() and int(total) <= MAX_SHARDS):
            continue
        wanted = {f"{prefix}-{i:0{len(number)}d}-of-{total}{path.suffix}" for i in range(1, int(total) + 1)}
        if missing := sorted(wanted - {other.name for other in paths}):
            report.error(
                "shard-missing",
                f"{path.name} says {int(total)} files and {len(missing)} are not there",
                where=str(root),
                expected=f"{int(total)} files",
                actual=f"missing: {listed(missing)}",
                fix="incomplete download? fetch the shards and the index again",
            )
            return


def index_from_headers(root: Path) -> int:
    """Write the index anew from the headers, at once or not at all; returns its number of tensors.

    Raises with every finding while anything but the index itself is wrong: an index that names tensors or files that are
    gone is the only witness of them.
    """
    if not root.is_dir() or not any(root.glob("*.safetensors")):
        raise error(
            NotFound,
            "checkpoint-not-found",
            "no safetensors files to index",
            where=str(root),
            expected="a Hugging Face folder with *.safetensors",
            actual="none",
            fix="name the folder that holds the weights",
        )
    folder = open_folder(root)
    if lasting := [finding for finding in folder.report.errors if finding.code not in CURED_BY_INDEX]:
        raise CkptError(*lasting)
    files = {tensor.name: folder.files[tensor.chunks[0].file].name for tensor in folder.tensors.values()}
    fresh = root / f"{INDEX}.new-{os.getpid()}"
    try:
        fresh.write_bytes(_index_bytes(files, sum(tensor.nbytes for tensor in folder.tensors.values())))
        fresh.replace(root / INDEX)
    finally:
        fresh.unlink(missing_ok=True)
    return len(files)


def lay_out(tensors: list[tuple[str, str, Shape]], max_file: int, offsets: Mapping[str, int] = NOWHERE) -> Image:
    """One file, or numbered shards of at most `max_file` bytes of data (a larger tensor stands alone) with an index.

    `offsets` are where tensors' bytes lie in their source: each file's data begins so that most bytes keep their place
    within a page.
    """
    shards: list[list[tuple[str, str, Shape]]] = [[]]
    sizes = [0]
    for entry in tensors:
        nbytes = Tensor(*entry, ()).nbytes
        if shards[-1] and sizes[-1] + nbytes > max_file:
            shards.append([])
            sizes.append(0)
        shards[-1].append(entry)
        sizes[-1] += nbytes
    total = len(shards)
    names = [SINGLE] if total == 1 else [f"model-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)]
    image = Image([], [], {})
    for number, (file, shard) in enumerate(zip(names, shards, strict=True)):
        header = header_bytes(shard, _phase(shard, offsets))
        image.literals.append(Literal(number, 0, header))
        position = len(header)
        for name, dtype, shape in shard:
            image.tensors[name] = Tensor(name, dtype, shape, (Chunk(number, position, (0,) * len(shape), shape),))
            position += image.tensors[name].nbytes
        image.files.append((file, position))
    if total > 1:
        files = {name: file for file, shard in zip(names, shards, strict=True) for name, _, _ in shard}
        image.small_files[INDEX] = _index_bytes(files, sum(sizes))
    return image


def _phase(shard: list[tuple[str, str, Shape]], offsets: Mapping[str, int]) -> int | None:
    """Where the data should begin, modulo a page, for most bytes to keep their place; None if nothing is known."""
    votes: Counter[int] = Counter()
    position = 0
    for name, dtype, shape in shard:
        nbytes = Tensor(name, dtype, shape, ()).nbytes
        if name in offsets and (offsets[name] - position) % ALIGNMENT == 0:
            votes[(offsets[name] - position) % PAGE] += nbytes
        position += nbytes
    return votes.most_common(1)[0][0] if votes else None


def _index_bytes(files: dict[str, str], total: int) -> bytes:
    """The index of tensor names to files; `total` counts tensor bytes, without headers."""
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(index, indent=2) + "\n").encode()
