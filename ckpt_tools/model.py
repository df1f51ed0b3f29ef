"""A checkpoint understood: its family, dimensions, table and the place of every tensor, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checks import check_hf, check_megatron, shape_differs
from .engine.moves import Scale
from .errors import NotFound, error
from .families import family_of
from .families.base import HF, MEGATRON, NONE, Family, Variants, unknown_shape
from .families.config import Fields
from .families.dims import Dims
from .mapping.arrangement import Shape
from .mapping.detect import Detected, detect, mtp_layers_present
from .mapping.rules import Bound, Naming, Table, expand, hf_shapes
from .quantised import read_scales, scale_names
from .reference import Reference, reference_of, shape_in
from .report import Report, listed
from .stores.hf_folder import CONFIG, HfFolder, is_hf_folder, open_folder, read_json
from .stores.torch_dist.reader import TorchDist, is_torch_dist, open_checkpoint

HF_COPY = "hf"  # inside the iteration directory: the config and sidecars that came with the weights
HALVES, SLIME = "mtp_halves", "slime"
EMBEDDING = "embedding.word_embeddings.weight"


@dataclass(slots=True)
class Model:
    """`mtp` counts the MTP layers that the keys show, `declared` what the config says.

    `chosen` are the layout variants of both sides, `scales` those of quantised weights, `towers` the tensors that are not
    the language model's; `reference` is what the original folder was like.
    """

    store: HfFolder | TorchDist
    config: dict[str, Any]
    config_path: Path
    family: Family
    dims: Dims
    mtp: int
    declared: int
    table: Table
    detected: Detected | None
    chosen: dict[str, str] = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)
    towers: list[str] = field(default_factory=list)
    reference: Reference = field(default_factory=Reference)

    @property
    def is_hf(self) -> bool:
        return isinstance(self.store, HfFolder)

    @property
    def naming(self) -> Naming:
        return self.detected.naming if self.detected else Naming(stacked=True)

    @property
    def stored_vocab(self) -> int:
        """Rows of the stored embedding: padded in torch-dist."""
        entry = self.store.contents.tensors.get(EMBEDDING) if isinstance(self.store, TorchDist) else None
        return max(entry.shape[0], self.dims.vocab_size) if entry and entry.shape else self.dims.vocab_size

    def table_with(self, mtp: int, padded_vocab: int | None = None, variants: Variants = NONE) -> Table:
        return self.family.table(self.dims, mtp, padded_vocab or self.dims.vocab_size, {**self.chosen, **variants})

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


def open_model(path: Path, hf_config: Path | None = None, variants: Variants = NONE) -> Model:
    """Open, identify and check a checkpoint completely, reading no tensor bytes.

    `hf_config` is a folder or a config.json; a torch-dist directory needs it unless it carries a copy. `variants` settles
    what no key tells. Raises with every finding: integrity, config, names, shapes.
    """
    store = open_store(path)
    model = describe(store, hf_config, variants)
    store.report.raise_errors()
    return model


def describe(store: HfFolder | TorchDist, hf_config: Path | None = None, variants: Variants = NONE) -> Model:
    """As `open_model`, but name and shape findings are left in `store.report`; config problems still raise."""
    config, where = _config_of(store, hf_config)
    fields = Fields(config, str(where))
    family = family_of(fields)
    dims = family.dims(fields)
    declared = fields.mtp_layers()
    fields.done()
    model = Model(store, config, where, family, dims, 0, declared, Table(()), None)
    model.chosen = family.defaults() | {kind: value for kind, value in variants.items() if kind in family.defaults()}
    if isinstance(store, HfFolder):
        store.report.raise_errors()
        _describe_hf(model, store)
    else:
        _describe_torch_dist(model, store, variants)
    return model


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


def _detected_variants(
    model: Model, side: str, names: Set[str], shape_of: Callable[[str], Shape | None] = unknown_shape
) -> dict[str, str]:
    return model.family.detected(side, model.dims, names, shape_of)


def _count_mtp(model: Model, names: Set[str], report: Report) -> int:
    """MTP layers by their tensors; they must be numbered from 0 without a gap, and not more than names can tell apart."""
    family, where = model.family, str(model.store.root)
    probe = model.table_with(family.mtp_limit if family.mtp_field else 0, model.stored_vocab)
    found = sorted(mtp_layers_present(probe, names, model.is_hf))
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


def _describe_hf(model: Model, folder: HfFolder) -> None:
    model.chosen |= _detected_variants(model, HF, folder.tensors.keys(), shape_in(folder.tensors))
    model.mtp = _count_mtp(model, folder.tensors.keys(), folder.report)
    model.table = model.table_with(model.mtp)
    expected = hf_shapes(model.table)
    model.scales = read_scales(
        folder,
        model.config,
        expected | {d.hf: expected[d.of] for d in model.table.duplicates},
        lambda name: model.family.scale_parts(model.dims, name),
        model.family.own_quantisation,
    )
    family, scales = model.family, scale_names(folder)
    model.towers = check_hf(folder, model.table, expected, family.name, model.mtp, scales, family.other_towers)


def _describe_torch_dist(model: Model, store: TorchDist, variants: Variants) -> None:
    keys = store.model_keys
    model.reference = reference_of(model.config_path)
    original = model.reference
    recorded = {kind: value for kind, value in original.variants.items() if kind not in variants}
    model.chosen |= recorded | _detected_variants(model, HF, original.names, original.shape_of)
    model.chosen |= _detected_variants(model, MEGATRON, keys) | dict(model.family.exports)
    _check_vocabulary(model, store)
    model.mtp = _count_mtp(model, keys, store.report)
    model.table = model.table_with(model.mtp, model.stored_vocab)
    model.detected = detect(model.table, keys)
    check_megatron(store, model.table, model.detected, model.family.name, model.mtp)
    if model.mtp and HALVES in model.chosen and HALVES not in {**variants, **recorded}:
        _check_halves(model, store)


def _check_halves(model: Model, store: TorchDist) -> None:
    """No key tells in which order the joint projection reads its halves; that slime wrote the rest does make one doubt."""
    if SLIME not in model.chosen.values() and "slime" not in str(store.argument("spec")):
        return
    store.report.warn(
        "eh-proj-order",
        "slime wrote this, and slime exchanges the halves of this family's joint projection; they are read as they are",
        where=str(store.root),
        expected="--mtp-halves swapped if slime converted the weights, straight if ckpt-tools did",
        actual="neither is asked for",
        fix="say which; a head with exchanged halves loads and drafts noise",
    )


def _check_vocabulary(model: Model, store: TorchDist) -> None:
    entry = store.contents.tensors.get(EMBEDDING)
    if entry and entry.shape and entry.shape[0] < model.dims.vocab_size:
        wanted = (model.dims.vocab_size, model.dims.hidden_size)
        shape_differs(store.report, EMBEDDING, str(store.root), wanted, entry.shape)


def rows_of(model: Model, table: Table | None = None) -> list[Bound]:
    """The expanded table of a model under the naming of its store."""
    return list(expand(table or model.table, model.naming))
