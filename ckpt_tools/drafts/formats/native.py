"""MTP layers in the naming of their family: inside a Hugging Face model, alone in a folder, or in torch-dist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...engine.moves import Move, Scale, Side, link, some_rows
from ...families import family_of
from ...families.base import HF, Family, Variants
from ...families.config import Fields
from ...families.dims import Dims
from ...mapping.arrangement import Shape
from ...mapping.detect import mtp_layers_present
from ...mapping.rules import Bound, Rule, Table, expand, hf_shapes, stored_shape
from ...model import Model, open_model
from ...quantised import FLOAT8, SUFFIXES, read_scales
from ...report import Report, listed
from ...stores.base import Chunk, Tensor
from ...stores.hf_folder import HfFolder
from ...stores.torch_dist.reader import TorchDist, locate
from ..spec import MTP, DraftSpec, HeadTensor, plain
from .containers import Container
from .packed import WEIGHT, refuse_packed

FORM, MEGATRON = "native", "megatron"


def mtp_rules(table: Table) -> tuple[Rule, ...]:
    return tuple(rule for rule in table.rules if any(axis.name == "mtp" for axis in rule.axes))


def mtp_index(table: Table) -> tuple[int, ...]:
    """The numbers that Hugging Face names give the MTP layers; none where names do not spell them."""
    axes = (axis for rule in mtp_rules(table) for axis in rule.axes if axis.name == "mtp" and axis.silent != HF)
    return tuple(next((axis.hf_values for axis in axes), ()))


def read_native(container: Container) -> DraftSpec | None:
    """The MTP layers of a folder whose config is the target's; None if there are none."""
    report = Report(list(container.findings))
    fields = Fields(container.config, str(container.config_path))
    family = family_of(fields)
    if not family.mtp_field:
        return None
    dims = family.dims(fields)
    declared = fields.mtp_layers()
    fields.done()
    variants = family.defaults() | family.detected(HF, dims, container.tensors.keys())
    probe = family.table(dims, family.mtp_limit, dims.vocab_size, variants)
    layers = mtp_layers_present(probe, container.tensors.keys(), hf=True)
    if not layers:
        return None
    table = family.table(dims, max(layers) + 1, dims.vocab_size, variants)
    shapes = hf_shapes(Table(mtp_rules(table)))
    present = {name: container.tensors[name] for name in shapes if name in container.tensors}
    modules = [name.removesuffix(WEIGHT) for name in shapes if name.endswith(WEIGHT)]
    scales: dict[str, Scale] = {}
    if not refuse_packed(container, present, modules, report, float8=True):
        _check(container, shapes, report) if 0 in layers else _misplaced(container, dims, layers, report)
        scales = _scales(container, family, dims, present, report)
    _check_count(container, family, declared, len(layers), report)
    beside = {name + s for name in present for s in SUFFIXES if name + s in container.tensors}
    present |= {name: container.tensors[name] for name in sorted(beside)}
    tensors = {name: plain(name, tensor, container.files, scales.get(name)) for name, tensor in present.items()}
    return spec_of(
        FORM, container.root, container.config_path, container.config, family, dims, variants, table, tensors, report
    )


def _check(container: Container, shapes: Mapping[str, Shape], report: Report) -> None:
    if absent := [name for name in shapes if name not in container.tensors]:
        report.error(
            "tensors-missing",
            f"{len(absent)} MTP tensors are missing",
            where=container.where,
            expected="every tensor of the MTP layers, numbered from 0 without a gap",
            actual=f"absent: {listed(absent)}",
            fix="the head is incomplete, or the config belongs to another model",
        )
    for name, shape in shapes.items():
        if name in container.tensors and container.tensors[name].shape != shape:
            report.error(
                "shape",
                f"{name} has another shape than the config says",
                where=container.where,
                expected=str(list(shape)),
                actual=str(list(container.tensors[name].shape)),
                fix="the config belongs to another model",
            )


def _misplaced(container: Container, dims: Dims, layers: set[int], report: Report) -> None:
    """Names that number MTP layers go on after the decoder's; with a gap, the config is that of another model."""
    report.error(
        "mtp-index",
        "the first MTP layer is not there, and a later one is",
        where=container.where,
        expected=f"MTP layer 0, behind the {dims.num_hidden_layers} layers that config.json counts",
        actual=f"MTP layer {', '.join(map(str, sorted(layers)))}",
        fix="keep the target's own config.json beside the head, or rename the layer",
    )


def _scales(
    container: Container, family: Family, dims: Dims, present: Mapping[str, Tensor], report: Report
) -> dict[str, Scale]:
    """The scale of every float8 weight. A bf16 layer in a quantised target, of whatever method, has none."""
    quantised = {name: tensor.shape for name, tensor in present.items() if tensor.dtype in FLOAT8}
    if not quantised:
        return {}
    folder = HfFolder(container.root, list(container.files), dict(container.tensors), None, report)
    return read_scales(folder, container.config, quantised, lambda name: family.scale_parts(dims, name))


def _check_count(container: Container, family: Family, declared: int, found: int, report: Report) -> None:
    if declared != found and not (family.undeclared_mtp and not declared):
        report.warn(
            "mtp-undeclared" if not declared else "mtp-count",
            f"the config declares {declared} MTP layers and the keys show {found}",
            where=str(container.config_path),
            expected="the same count",
            actual=f"{declared} declared, {found} found",
            fix="extract-draft and merge-draft write the count that is there",
        )


def spec_of(
    form: str,
    root: Path,
    config_path: Path,
    config: Mapping[str, object],
    family: Family,
    dims: Dims,
    variants: Variants,
    table: Table,
    tensors: Mapping[str, HeadTensor],
    report: Report,
) -> DraftSpec:
    """An MTP head: its dimensions are the target's."""
    count = max(
        (len(axis.megatron) for rule in mtp_rules(table) for axis in rule.axes if axis.name == "mtp"), default=0
    )
    return DraftSpec(
        kind=MTP,
        form=form,
        source=root,
        hidden_size=dims.hidden_size,
        target_hidden_size=dims.hidden_size,
        num_attention_heads=dims.num_attention_heads,
        num_key_value_heads=dims.num_key_value_heads,
        head_dim=dims.head_dim,
        intermediate_size=dims.intermediate_size,
        num_layers=count,
        vocab_size=dims.vocab_size,
        draft_vocab_size=dims.vocab_size,
        borrows_head=True,
        max_position_embeddings=dims.max_position_embeddings,
        rope=dims.rope,
        rms_norm_eps=dims.rms_norm_eps,
        config=config,
        config_path=config_path,
        tensors=tensors,
        qkv_bias=dims.qkv_bias,
        qk_norm=dims.qk_norm,
        mla=dims.mla,
        family=family,
        dims=dims,
        variants=variants,
        mtp_layers=count,
        mtp_index=mtp_index(table),
        findings=tuple(report.findings),
    )


def read_megatron(path: Path, hf_config: Path | None) -> DraftSpec | None:
    """The trained MTP layers of a torch-dist directory; None if there are none. The directory is checked as a whole."""
    model = open_model(path, hf_config)
    store = model.store
    assert isinstance(store, TorchDist)
    if not model.mtp:
        return None
    table = Table(mtp_rules(model.table))
    rows = list(expand(table, model.naming))
    locate(store, {slot.name for row in rows for slot in row.wholes})
    tensors = _from_wholes(model, store, rows)
    report = Report(list(store.report.findings))
    return spec_of(
        MEGATRON,
        store.root,
        model.config_path,
        model.config,
        model.family,
        model.dims,
        model.chosen,
        model.table,
        tensors,
        report,
    )


def _from_wholes(model: Model, store: TorchDist, rows: Iterable[Bound]) -> dict[str, HeadTensor]:
    """Hugging Face tensors out of Megatron's: each is a virtual file of its own, so that moves can be told apart."""
    rows = list(rows)
    virtual: dict[str, Tensor] = {}
    origin_of: dict[str, str] = {}
    for row in rows:
        stored = store.tensors[row.wholes[0].name].dtype
        for slot, template, logical in zip(row.hf, row.rule.hf, row.rule.shapes, strict=True):
            if slot.name not in virtual:
                shape = stored_shape(template, row.rule.axes, logical, hf=True)
                dtype = model.reference.dtypes.get(slot.name, stored) if row.rule.shift else stored
                chunk = Chunk(len(virtual), 0, (0,) * len(shape), shape)
                virtual[slot.name] = Tensor(slot.name, dtype, shape, (chunk,))
                origin_of[slot.name] = row.wholes[0].name
    moves: list[list[Move]] = [[] for _ in virtual]
    for move in link(rows, Side(virtual), Side(store.tensors), to_megatron=False):
        moves[move.target_file] += _row_by_row(move)
    files = tuple(store.files)
    return {
        name: HeadTensor(origin_of[name], tensor, files, tuple(moves[number]))
        for number, (name, tensor) in enumerate(virtual.items())
    }


def _row_by_row(move: Move) -> list[Move]:
    """A move with gaps in its source (half of a swapped projection) as one per row: a strided one would read the gaps."""
    if move.cast is not None or move.width == move.source_stride:
        return [move]
    return [some_rows(move, row, 1) for row in range(move.rows)]
