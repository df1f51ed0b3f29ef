"""A checkpoint understood: its family, dimensions, table and the place of every tensor, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CkptError, NotFound, error
from .families import family_of
from .families.base import Family
from .families.config import Fields
from .families.dims import Dims
from .mapping.detect import Detected, detect, mtp_layers_present
from .mapping.rules import Bound, Naming, Slot, Table, expand, hf_shapes, megatron_shapes
from .report import Report, listed
from .stores.hf_folder import CONFIG, HfFolder, is_hf_folder, open_folder, read_json
from .stores.torch_dist.reader import TorchDist, is_torch_dist, open_checkpoint

HF_COPY = "hf"  # inside the iteration directory: the config and sidecars that came with the weights
MTP_PROBE = 16  # no release has more MTP layers; the count is what the keys show


@dataclass(slots=True)
class Model:
    """`mtp` counts the MTP layers that the keys show, `declared` what the config says."""

    store: HfFolder | TorchDist
    config: dict[str, Any]
    config_path: Path
    family: Family
    dims: Dims
    mtp: int
    declared: int
    table: Table
    detected: Detected | None

    @property
    def is_hf(self) -> bool:
        return isinstance(self.store, HfFolder)

    @property
    def naming(self) -> Naming:
        return self.detected.naming if self.detected else Naming(stacked=True)

    def table_with(self, mtp: int, padded_vocab: int | None = None) -> Table:
        return self.family.table(self.dims, mtp, padded_vocab or self.dims.vocab_size)

    def stored_duplicates(self) -> list[tuple[str, str]]:
        """(name, original) of the Hugging Face duplicates that this folder stores."""
        return [(d.hf, d.of) for d in self.table.duplicates if self.is_hf and d.hf in self.store.tensors]


def open_store(path: Path) -> HfFolder | TorchDist:
    """The store at a path; raises NotFound if it is neither format."""
    if is_torch_dist(path):
        return open_checkpoint(path)
    if is_hf_folder(path):
        return open_folder(path)
    raise error(
        NotFound,
        "checkpoint-not-found",
        "no checkpoint here",
        where=str(path),
        expected="a Hugging Face folder (config.json, *.safetensors) or a torch-dist directory",
        actual="neither" if path.exists() else "no such directory",
        fix="check the path",
    )


def open_model(path: Path, hf_config: Path | None = None) -> Model:
    """Open, identify and check a checkpoint completely, reading no tensor bytes.

    `hf_config` is a folder or a config.json; a torch-dist directory needs it unless it carries a copy. Raises with every
    finding: integrity, config, names, shapes.
    """
    store = open_store(path)
    model = describe(store, hf_config)
    store.report.raise_errors()
    return model


def describe(store: HfFolder | TorchDist, hf_config: Path | None = None) -> Model:
    """As `open_model`, but name and shape findings are left in `store.report`; config problems still raise."""
    config, where = _config_of(store, hf_config)
    fields = Fields(config, str(where))
    family = family_of(fields)
    dims = family.dims(fields)
    declared = fields.mtp_layers()
    fields.done()
    if isinstance(store, HfFolder):
        store.report.raise_errors()
        return _describe_hf(store, config, where, family, dims, declared)
    return _describe_torch_dist(store, config, where, family, dims, declared)


def _config_of(store: HfFolder | TorchDist, hf_config: Path | None) -> tuple[dict[str, Any], Path]:
    carried = store.root if isinstance(store, HfFolder) else store.root / HF_COPY
    path = hf_config or carried
    path = path / CONFIG if path.is_dir() or not path.suffix else path
    if path.is_file():
        return read_json(path), path
    raise error(
        NotFound,
        "config-not-found",
        "no config.json says what model this is",
        where=str(path),
        expected="a config.json",
        actual="no such file",
        fix="restore config.json" if isinstance(store, HfFolder) else "name the original model with --hf-config REF",
    )


def _mtp_probe(family: Family, dims: Dims, padded: int) -> Table:
    return family.table(dims, MTP_PROBE if family.mtp_field else 0, padded)


def _count(layers: Iterable[int], report: Report, where: str) -> int:
    """Layers must be 0, 1, ... without a gap."""
    found = sorted(layers)
    if found != list(range(len(found))):
        report.error(
            "mtp-layers-gap",
            "MTP layers are not numbered from 0 without a gap",
            where=where,
            expected=f"0 to {len(found) - 1}",
            actual=listed(map(str, found)),
            fix="the checkpoint is incomplete",
        )
    return found[-1] + 1 if found else 0


def _describe_hf(
    folder: HfFolder, config: dict[str, Any], where: Path, family: Family, dims: Dims, declared: int
) -> Model:
    probe = _mtp_probe(family, dims, dims.vocab_size)
    layers = mtp_layers_present(probe, folder.tensors.keys(), hf=True)
    mtp = _count(layers, folder.report, str(folder.root))
    table = family.table(dims, mtp, dims.vocab_size)
    model = Model(folder, config, where, family, dims, mtp, declared, table, None)
    _check_hf_names(model, folder)
    return model


def _check_hf_names(model: Model, folder: HfFolder) -> None:
    expected = hf_shapes(model.table)
    optional = {d.hf: expected[d.of] for d in model.table.duplicates} | dict.fromkeys(model.table.recomputed)
    missing = [name for name in expected if name not in folder.tensors]
    extra = [name for name in folder.tensors if name not in expected and name not in optional]
    where = str(folder.root)
    if missing == ["lm_head.weight"]:
        folder.report.error(
            "lm-head-missing",
            "the config says that embedding and head are not tied, and there is no lm_head.weight",
            where=where,
            expected="lm_head.weight, or tie_word_embeddings true",
            actual="tie_word_embeddings false, no lm_head.weight",
            fix="fetch the checkpoint again; if the model is tied, correct config.json",
        )
    elif missing:
        _report_missing(folder.report, missing, where, f"{model.family.name} with {model.mtp} MTP layers")
    if extra:
        _report_extra(folder.report, extra, where, model.family.name)
    if model.table.recomputed and (dropped := [n for n in model.table.recomputed if n in folder.tensors]):
        folder.report.note(
            "buffers-recomputed",
            f"{len(dropped)} rotary buffers follow from the config and are not copied",
            where=where,
        )
    for name, shape in {**expected, **optional}.items():
        if shape is not None and name in folder.tensors and folder.tensors[name].shape != shape:
            _report_shape(folder.report, name, where, shape, folder.tensors[name].shape)


def _report_missing(report: Report, names: list[str], where: str, what: str) -> None:
    report.error(
        "tensors-missing",
        f"{len(names)} tensors are missing",
        where=where,
        expected=f"every tensor of {what}",
        actual=f"absent: {listed(names)}",
        fix="the checkpoint is incomplete, or its config belongs to another model",
    )


def _report_extra(report: Report, names: list[str], where: str, family: str) -> None:
    report.error(
        "tensors-unmapped",
        f"{len(names)} tensors have no place in the table of {family}",
        where=where,
        expected="only the tensors that the config enumerates",
        actual=listed(names),
        fix="the config belongs to another model, or the family needs a rule; nothing is dropped silently",
    )


def _report_shape(report: Report, name: str, where: str, expected: tuple[int, ...], actual: tuple[int, ...]) -> None:
    report.error(
        "shape",
        f"{name} has another shape than the config says",
        where=where,
        expected=str(list(expected)),
        actual=str(list(actual)),
        fix="the config belongs to another model, or the tensor was changed",
    )


def _describe_torch_dist(
    store: TorchDist, config: dict[str, Any], where: Path, family: Family, dims: Dims, declared: int
) -> Model:
    keys = store.model_keys
    rows = _stored_vocabulary(store, dims)
    mtp = _count(mtp_layers_present(_mtp_probe(family, dims, rows), keys, hf=False), store.report, str(store.root))
    table = family.table(dims, mtp, rows)
    detected = detect(table, keys)
    model = Model(store, config, where, family, dims, mtp, declared, table, detected)
    _check_variants(model, store)
    _check_megatron_names(model, store)
    return model


def _stored_vocabulary(store: TorchDist, dims: Dims) -> int:
    """Rows of the stored embedding: the vocabulary as it was padded."""
    entry = store.contents.tensors.get("embedding.word_embeddings.weight")
    rows = entry.shape[0] if entry and entry.shape else dims.vocab_size
    if rows < dims.vocab_size:
        _report_shape(
            store.report,
            "embedding.word_embeddings.weight",
            str(store.root),
            (dims.vocab_size, dims.hidden_size),
            (rows,),
        )
        return dims.vocab_size
    return rows


def _check_variants(model: Model, store: TorchDist) -> None:
    assert model.detected is not None
    for kind, values in model.detected.mixed.items():
        store.report.error(
            f"{kind}-naming-mixed",
            f"the checkpoint mixes two ways of naming ({kind})",
            where=str(store.root),
            expected="one of them throughout",
            actual=", ".join(f"{value}: {example}" for value, example in values.items()),
            fix="two tools wrote into one directory; save the checkpoint again",
        )


def _check_megatron_names(model: Model, store: TorchDist) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    for rule in model.table.rules:
        expected |= megatron_shapes(rule, model.naming.template(rule))
    keys, where = store.model_keys, str(store.root)
    if missing := [name for name in expected if name not in keys]:
        _report_missing(store.report, missing, where, f"{model.family.name} with {model.mtp} MTP layers")
    if extra := sorted(keys - expected.keys()):
        _report_extra(store.report, extra, where, model.family.name)
    for name, shape in expected.items():
        if name in keys and store.contents.tensors[name].shape != shape:
            _report_shape(store.report, name, where, shape, store.contents.tensors[name].shape)
    if store.training_keys:
        store.report.note(
            "training-state",
            f"{len(store.training_keys)} optimizer, RNG and scheduler entries are left where they are",
            where=where,
        )


def rows_of(model: Model, table: Table | None = None) -> list[Bound]:
    """The expanded table of a model under the naming of its store."""
    return list(expand(table or model.table, model.naming))


def hf_slots(rows: Iterable[Bound]) -> list[Slot]:
    return [slot for row in rows for slot in row.hf]


def fail_mtp(found: int, wanted: str, where: str, fix: str) -> CkptError:
    return error(
        CkptError,
        "mtp-count",
        "the number of MTP layers is not clear",
        where=where,
        expected=wanted,
        actual=f"{found} found in the keys",
        fix=fix,
    )
