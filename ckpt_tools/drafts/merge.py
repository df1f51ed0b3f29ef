"""Putting MTP layers into a Hugging Face model: only the shards that change are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.execute import execute
from ..engine.moves import Move
from ..engine.output import check_target, output_directory
from ..engine.program import Program
from ..errors import CkptError, Finding, UsageProblem, error
from ..families.base import Family
from ..families.edits import edited_config
from ..mapping.arrangement import Shape
from ..mapping.rules import Table, hf_shapes
from ..quantised import SUFFIXES
from ..report import Outcome, Report, listed
from ..stores.base import Chunk, Image, Literal, Tensor
from ..stores.hf_folder import CONFIG, GHOST, INDEX, HfFolder, index_from_headers, open_folder
from ..stores.safetensors_header import header_bytes
from ..stores.sidecars import copy_sidecars
from ..stores.torch_dist.reader import is_torch_dist
from .body import check_body
from .export import (
    Exported,
    Options,
    Starting,
    check_pair,
    config_for,
    is_written_head,
    provenance,
    target_ref,
    verify,
)
from .formats.containers import Container
from .formats.exclusions import exclusions
from .formats.native import mtp_rules, read_native
from .formats.parts import stored
from .formats.speculators_mtp import EXPERTS_VARIANT, FAMILIES, with_experts
from .formats.targets import Target, count_edits, read_target
from .formats.writing import Placed, placed_moves, zero_bytes
from .links import take_over
from .manifest import MANIFEST, Manifest, hash_file, write_manifest, written_by
from .mtp import UNSETTLED, only_mtp
from .spec import MTP, DraftSpec, HeadTensor, open_draft

ADDED = "model-mtp.safetensors"
MERGED = "merged"


@dataclass(frozen=True, slots=True)
class _Merge:
    """What is written anew: shards by name with (tensor name -> head tensor or stored tensor), and what is removed."""

    shards: Mapping[str, Mapping[str, HeadTensor]]
    unchanged: tuple[Path, ...]


def merge_draft(
    target_path: Path, draft: Path, out: Path, options: Options, starting: Starting | None = None
) -> Outcome[Exported]:
    """Write the model at `target_path` with the MTP layers of `draft` in it.

    Only shards that hold an MTP tensor are written again; the others are taken over without reading them. Nothing is ever
    changed in place. Raises CkptError and its kinds; on failure nothing is left at `out`.
    """
    for source in (target_path, draft):
        check_target(source, out, options.overwrite, is_written_head)
    folder, target = _open_target(target_path, options.target_name)
    assert target.family is not None
    spec = open_draft(draft, config_for(draft, target_path, options))
    only_mtp(spec, "merge-draft")
    _fill_ghosts(folder, spec)
    check_body(folder, target)
    report = Report([*folder.report.findings, *(f for f in spec.findings if f.code not in UNSETTLED)])
    check_pair(spec, target, report)
    report.raise_errors(CkptError)
    before = _layers_in(folder, target)
    spec = _as_stored(spec, before, target)
    merge = _plan(folder, target.family, spec, before)
    config = edited_config(target.config_path.read_bytes(), _edits(spec, target))
    program = _program(merge)
    result = _result(spec, folder, out, target, merge, options)
    if options.dry_run:
        return Outcome(result, report.findings)
    progress = starting(program.nbytes) if starting else None
    with output_directory(out, program.nbytes, None, options.overwrite, is_written_head) as partial:
        execute(program, partial, progress)
        for path in merge.unchanged:
            take_over(path, partial / path.name)
        copy_sidecars(folder.root, partial)
        (partial / CONFIG).write_bytes(config)
        (partial / MANIFEST).unlink(missing_ok=True)
        if (folder.root / INDEX).is_file() or len(merge.shards) + len(merge.unchanged) > 1:
            index_from_headers(partial)
        write_manifest(partial, _manifest(spec, target, options, partial, merge))
        verify(partial, target, options, result, report)
    return Outcome(result, report.findings)


def _open_target(path: Path, name: str) -> tuple[HfFolder, Target]:
    if is_torch_dist(path) or path.is_file():
        megatron = not path.is_file()
        fix = "convert the model to Hugging Face first; its MTP layers come along"
        raise error(
            UsageProblem,
            "target-not-hf",
            "a head is merged into a Hugging Face folder",
            where=str(path),
            expected="a folder with config.json and *.safetensors",
            actual="a Megatron directory" if megatron else "a file",
            fix=fix if megatron else "name the folder that holds the weights",
        )
    folder, target = open_folder(path), read_target(path, name)
    if not folder.ghosts:
        folder.report.raise_errors()
    if target.family is None or not target.family.mtp_field:
        raise error(
            CkptError,
            "no-mtp-family",
            "the target's family has no MTP layers",
            where=str(target.config_path),
            expected="a family with MTP layers (see `ckpt-tools families`)",
            actual=str(target.config.get("model_type")),
            fix="serve the head beside the target",
        )
    return folder, target


def _fill_ghosts(folder: HfFolder, spec: DraftSpec) -> None:
    """Tensors that the index promises and no file holds may be those of the head that is merged; others are errors."""
    if folder.ghosts <= spec.tensors.keys():
        lasting = [finding for finding in folder.report.findings if finding.code != GHOST]
        if folder.ghosts:
            lasting.append(
                Finding(
                    "index-ghost-filled",
                    f"{len(folder.ghosts)} tensors that the index promised and no file holds come with the head",
                    where=str(folder.root),
                    expected="every tensor of the index",
                    actual=listed(sorted(folder.ghosts)),
                    severity="warning",
                )
            )
        folder.report.findings = lasting
    folder.report.raise_errors()


def _layers_in(folder: HfFolder, target: Target) -> DraftSpec | None:
    """The MTP layers that the target holds already; what is odd about them does not matter, they are replaced."""
    found = Container(folder.root, target.config, target.config_path, tuple(folder.files), folder.tensors)
    return read_native(found)


def _as_stored(spec: DraftSpec, before: DraftSpec | None, target: Target) -> DraftSpec:
    """The head with its experts as the target stores them."""
    assert target.family is not None
    like = before.variants if before else target.family.defaults()
    wanted = like.get(EXPERTS_VARIANT)
    if wanted is None or wanted == spec.variants.get(EXPERTS_VARIANT):
        return spec
    if target.family.name in FAMILIES:
        return with_experts(spec, wanted)
    if before is None:
        return spec
    raise error(
        CkptError,
        "experts-differ",
        "head and target store the experts of an MTP layer in different forms",
        where=str(spec.source),
        expected=wanted,
        actual=str(spec.variants.get(EXPERTS_VARIANT)),
        fix="bring the head into the target's form with the tool that made it",
    )


def _plan(folder: HfFolder, family: Family, spec: DraftSpec, before: DraftSpec | None) -> _Merge:
    assert spec.dims is not None
    table = family.table(spec.dims, spec.mtp_layers, spec.dims.vocab_size, spec.variants)
    expected: dict[str, Shape] = hf_shapes(Table(mtp_rules(table)))
    scales = {name + suffix for name in expected for suffix in SUFFIXES}
    if lacking := [name for name in expected if name not in spec.tensors]:
        raise error(
            CkptError,
            "tensors-missing",
            f"{len(lacking)} tensors of the head are missing",
            where=str(spec.source),
            expected=f"every MTP tensor of {family.name}",
            actual=f"absent: {listed(lacking)}",
            fix="the head is incomplete",
        )
    replaced = {name for name in (*expected, *scales) if name in folder.tensors}
    if before is not None:
        old = family.table(spec.dims, before.mtp_layers, spec.dims.vocab_size, before.variants)
        copies = {copy.hf for copy in old.duplicates} - {copy.hf for copy in table.duplicates}
        replaced |= {*before.tensors, *(name for name in copies if name in folder.tensors)}
    new = dict(spec.tensors)
    shards: dict[str, dict[str, HeadTensor]] = {}
    single = len(folder.files) == 1 and not (folder.root / INDEX).is_file()  # it stays one file, without an index
    touched = folder.files if single else _touched(folder, replaced)
    for path in touched:
        shards[path.name] = _rewritten(folder, path, replaced, new)
    present = {name for shard in shards.values() for name in shard}
    if left := {name: entry for name, entry in new.items() if name not in present}:
        home = touched[0] if single else folder.root / ADDED
        if home.name not in shards:
            shards[home.name] = _rewritten(folder, home, replaced, new) if home in folder.files else {}
        shards[home.name].update(left)
    kept = tuple(path for path in folder.files if path.name not in shards)
    return _Merge({name: tensors for name, tensors in shards.items() if tensors}, kept)


def _touched(folder: HfFolder, names: set[str]) -> list[Path]:
    numbers = {folder.tensors[name].chunks[0].file for name in names if name in folder.tensors}
    return [path for number, path in enumerate(folder.files) if number in numbers]


def _rewritten(
    folder: HfFolder, path: Path, replaced: set[str], new: Mapping[str, HeadTensor]
) -> dict[str, HeadTensor]:
    """The tensors of one shard in their order, the replaced ones out of the head."""
    number, files = folder.files.index(path), tuple(folder.files)
    here = [t for t in folder.tensors.values() if t.chunks[0].file == number]
    found: dict[str, HeadTensor] = {}
    for tensor in sorted(here, key=lambda t: t.chunks[0].offset):
        if tensor.name not in replaced:
            found[tensor.name] = stored(tensor, files)
        elif tensor.name in new:
            found[tensor.name] = new[tensor.name]
    return found


def _program(merge: _Merge) -> Program:
    image = Image([], [], {})
    places: dict[str, Placed] = {}
    for number, (file, tensors) in enumerate(merge.shards.items()):
        header = header_bytes([(name, entry.dtype, entry.shape) for name, entry in tensors.items()])
        image.literals.append(Literal(number, 0, header))
        position = len(header)
        for name, entry in tensors.items():
            places[name] = Placed(number, position)
            chunk = Chunk(number, position, (0,) * len(entry.shape), entry.shape)
            image.tensors[name] = Tensor(name, entry.dtype, entry.shape, (chunk,))
            position += image.tensors[name].nbytes
        image.files.append((file, position))
    sources: list[Path] = []
    moves: list[Move] = []
    for tensors in merge.shards.values():
        sources, more = placed_moves(tensors, places, sources)
        moves += more
    program = Program(sources, image, moves)
    program.check(sum(zero_bytes(tensors) for tensors in merge.shards.values()))
    return program


def _edits(spec: DraftSpec, target: Target) -> dict[tuple[str, ...], Any]:
    """The count of MTP layers; modules that are not quantised."""
    return count_edits(spec, target) | exclusions(spec, target.config, str(target.config_path))


def _manifest(spec: DraftSpec, target: Target, options: Options, partial: Path, merge: _Merge) -> Manifest:
    """Hashes of what was written; shards that were taken over are the target's own."""
    names = [CONFIG, *merge.shards, *([INDEX] if (partial / INDEX).is_file() else [])]
    return Manifest(
        written_by=written_by(),
        format=MERGED,
        kind=MTP,
        architecture=target.architecture,
        target=target_ref(target, options),
        provenance=provenance(spec, []),
        files={name: hash_file(partial / name) for name in sorted(names)},
    )


def _result(spec: DraftSpec, folder: HfFolder, out: Path, target: Target, merge: _Merge, options: Options) -> Exported:
    return Exported(
        source=str(spec.source),
        destination=str(out),
        target=target.name or str(folder.root),
        kind=MTP,
        source_format=spec.form,
        format=MERGED,
        architecture=target.architecture,
        tensors=len(spec.tensors),
        nbytes=spec.nbytes,
        files=len(merge.shards),
        unchanged=len(merge.unchanged),
        dry_run=options.dry_run,
    )
