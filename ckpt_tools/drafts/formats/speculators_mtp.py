"""MTP heads as speculators keeps them: Qwen's `mtp.*` under other names, experts always packed."""

from __future__ import annotations

from dataclasses import replace

from ...errors import CkptError, error
from ...families import family_of
from ...families.config import Fields
from ...families.dims import Dims
from ...families.moe import PACKED
from ...mapping.rules import Table, hf_shapes
from ...report import Report, listed
from ...stores.base import Tensor
from ..spec import MTP, DraftSpec, HeadTensor, plain
from .base import LAYER_CONFIG, nested, verifier_of
from .containers import Container
from .native import mtp_rules, spec_of
from .parts import cut, stacked

FORM = "speculators"
FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")  # whose MTP tensors are called mtp.*
FRAME = {
    "mtp.fc.weight": "mtp_layers.0.input_proj.weight",
    "mtp.norm.weight": "mtp_layers.0.final_layernorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "mtp_layers.0.hidden_layernorm.weight",
    "mtp.pre_fc_norm_embedding.weight": "mtp_layers.0.token_layernorm.weight",
}
INNER, OUTER = "mtp.layers.0.", "mtp_layers.0."
TARGETS = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight")  # the target's, saved along
EXPERTS_VARIANT = "mtp_experts"
EXPERTS = INNER + "mlp.experts."
GATE_UP, DOWN = EXPERTS + "gate_up_proj", EXPERTS + "down_proj"


def outer_name(native: str) -> str:
    """speculators' name of a tensor of a Qwen head."""
    return FRAME.get(native) or OUTER + native.removeprefix(INNER)


def read(container: Container) -> DraftSpec:
    """Raises CkptError if the layer config is of no family with `mtp.*` tensors."""
    report = Report(list(container.findings))
    fields = Fields(nested(container.config, LAYER_CONFIG), f"{container.config_path}: {LAYER_CONFIG}")
    family = family_of(fields)
    if family.name not in FAMILIES:
        raise _not_qwen(family.name, str(container.config_path))
    dims = family.dims(fields)
    fields.done()
    variants = family.defaults() | ({EXPERTS_VARIANT: PACKED} if dims.moe else {})
    table = family.table(dims, 1, dims.vocab_size, variants)
    shapes = hf_shapes(Table(mtp_rules(table)))
    tensors: dict[str, HeadTensor] = {}
    for name, shape in shapes.items():
        stored = container.tensors.get(outer_name(name))
        if stored is not None:
            tensors[name] = plain(name, stored, container.files)
        if stored is None or stored.shape != shape:
            _wrong(container, name, shape, stored, report)
    known = {*map(outer_name, shapes), *TARGETS}
    if unknown := sorted(name for name in container.tensors if name not in known):
        report.error(
            "tensors-unmapped",
            f"{len(unknown)} tensors have no place in an MTP head of {family.name}",
            where=container.where,
            expected="the tensors of the head, nothing else",
            actual=listed(unknown),
            fix="the config belongs to another head",
        )
    spec = spec_of(
        FORM, container.root, container.config_path, container.config, family, dims, variants, table, tensors, report
    )
    return replace(spec, verifier=verifier_of(container.config))


def _not_qwen(family: str, where: str) -> CkptError:
    return error(
        CkptError,
        "format-cannot-express",
        f"speculators has no names for the MTP layers of {family}",
        where=where,
        expected=", ".join(FAMILIES),
        actual=family,
        fix="--format sglang",
    )


def _wrong(container: Container, name: str, shape: tuple[int, ...], stored: Tensor | None, report: Report) -> None:
    report.error(
        "shape" if stored else "tensors-missing",
        f"{outer_name(name)} is not what the config says",
        where=container.where,
        expected=str(list(shape)),
        actual=str(list(stored.shape)) if stored else "absent",
        fix="the head is incomplete, or the config belongs to another one",
    )


def tensors_for(spec: DraftSpec) -> dict[str, HeadTensor]:
    """The head under speculators' names, experts packed; raises CkptError for other families and for float8."""
    family, dims = spec.family, spec.dims
    assert spec.kind == MTP and family is not None and dims is not None
    if family.name not in FAMILIES:
        raise _not_qwen(family.name, str(spec.config_path))
    packed = with_experts(spec, PACKED) if dims.moe else spec
    return {outer_name(name): entry for name, entry in packed.tensors.items()}


def with_experts(spec: DraftSpec, wanted: str) -> DraftSpec:
    """The same head with its experts one tensor each, or packed; bit-exact."""
    dims = spec.dims
    assert dims is not None
    if dims.moe is None or spec.variants.get(EXPERTS_VARIANT) == wanted:
        return spec
    others = {name: entry for name, entry in spec.tensors.items() if not name.startswith(EXPERTS)}
    made = _packed(spec, dims) if wanted == PACKED else _apart(spec, dims)
    return replace(spec, tensors={**others, **made}, variants={**spec.variants, EXPERTS_VARIANT: wanted})


def _packed(spec: DraftSpec, dims: Dims) -> dict[str, HeadTensor]:
    assert dims.moe is not None
    count, size, hidden = dims.moe.num_experts, dims.moe.intermediate_size, dims.hidden_size
    each = [[spec.tensors[f"{EXPERTS}{i}.{name}.weight"] for name in ("gate_proj", "up_proj")] for i in range(count)]
    down = [spec.tensors[f"{EXPERTS}{i}.down_proj.weight"] for i in range(count)]
    return {
        GATE_UP: stacked(GATE_UP, (count, 2 * size, hidden), [part for pair in each for part in pair]),
        DOWN: stacked(DOWN, (count, hidden, size), down),
    }


def _apart(spec: DraftSpec, dims: Dims) -> dict[str, HeadTensor]:
    assert dims.moe is not None
    count, size, hidden = dims.moe.num_experts, dims.moe.intermediate_size, dims.hidden_size
    gate_up, down = spec.tensors[GATE_UP], spec.tensors[DOWN]
    made: dict[str, HeadTensor] = {}
    for i in range(count):
        at = f"{EXPERTS}{i}."
        pieces = (
            (f"{at}gate_proj.weight", gate_up, 2 * i * size * hidden, (size, hidden)),
            (f"{at}up_proj.weight", gate_up, (2 * i + 1) * size * hidden, (size, hidden)),
            (f"{at}down_proj.weight", down, i * size * hidden, (hidden, size)),
        )
        made |= {name: cut(entry, name, first, shape) for name, entry, first, shape in pieces}
    return made
