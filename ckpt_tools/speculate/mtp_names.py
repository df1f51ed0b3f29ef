"""Which tensor of a release is which parameter of an MTP layer, read off the family's own mapping table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..drafts.formats.native import mtp_rules
from ..drafts.spec import DraftSpec
from ..mapping.rules import Bound, Naming, Table, expand

FRAME = ("enorm", "hnorm", "eh_proj", "final_layernorm")
FRAME_AT = "mtp.layers."
BLOCK = "block."
EXPERTS, GATE_UP, DOWN = "mlp.experts.", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
# Names of decoder parts that transformers calls otherwise: MiMo-V2's norm before the dense MLP of an MTP layer.
RENAMED = {"pre_mlp_layernorm.weight": "post_attention_layernorm.weight"}


@dataclass(frozen=True, slots=True)
class LayerNames:
    """One MTP layer: canonical names of its frame and of its decoder layer (by the name inside the layer).

    `hidden_first`: the joint projection reads [hidden, embedding] instead of [embedding, hidden].
    """

    frame: Mapping[str, str]
    block: Mapping[str, str]
    hidden_first: bool = False


@dataclass(slots=True)
class _Growing:
    frame: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    hidden_first: bool = False


def layer_names(spec: DraftSpec) -> list[LayerNames]:
    """The names of every MTP layer of the head."""
    assert spec.family is not None and spec.dims is not None
    table = spec.family.table(spec.dims, spec.mtp_layers, spec.dims.vocab_size, spec.variants)
    growing: dict[int, _Growing] = {}
    for row in expand(Table(mtp_rules(table)), Naming(stacked=False)):
        number, _, inner = row.megatron.name.removeprefix(FRAME_AT).partition(".")
        layer = growing.setdefault(int(number), _Growing())
        part = inner.removesuffix(".weight")
        if part in FRAME:
            layer.frame[part] = row.hf[0].name
            layer.hidden_first |= part == "eh_proj" and _swapped(row)
        else:
            layer.names += [slot.name for slot in row.hf if slot.name not in layer.names]
    return [_named(growing[number]) for number in sorted(growing)]


def _swapped(row: Bound) -> bool:
    """mcore's order is [embedding, hidden]; a family whose halves are exchanged on the way reads them the other way."""
    return row.rule.arrangement.blocks[0].start > 0


def _named(layer: _Growing) -> LayerNames:
    start = next(name for name in layer.names if name.endswith("input_layernorm.weight"))
    prefix = start.removesuffix("input_layernorm.weight")
    inner = {name.removeprefix(prefix): name for name in layer.names}
    return LayerNames(
        layer.frame, {RENAMED.get(short, short): name for short, name in inner.items()}, layer.hidden_first
    )


def module_state(names: LayerNames, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of one MtpLayer; experts stored one by one are packed as transformers packs them."""
    state = {f"{part}.weight": tensors[name] for part, name in names.frame.items()}
    plain = {short: tensors[name] for short, name in names.block.items() if not _is_expert(short)}
    experts = {short: tensors[name] for short, name in names.block.items() if _is_expert(short)}
    return state | {BLOCK + short: tensor for short, tensor in {**plain, **_packed(experts)}.items()}


def canonical_state(names: LayerNames, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `module_state`."""
    found = {name: state[f"{part}.weight"] for part, name in names.frame.items()}
    for short, name in names.block.items():
        found[name] = _unpacked(short, state) if _is_expert(short) else state[BLOCK + short]
    return found


def _is_expert(short: str) -> bool:
    """An expert stored alone: `mlp.experts.{e}.gate_proj.weight`."""
    return short.startswith(EXPERTS) and short.split(".")[2].isdigit()


def _packed(experts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not experts:
        return {}
    count = 1 + max(int(short.split(".")[2]) for short in experts)
    each = [[experts[f"{EXPERTS}{e}.{part}_proj.weight"] for part in ("gate", "up", "down")] for e in range(count)]
    return {
        GATE_UP: torch.stack([torch.cat([gate, up]) for gate, up, _ in each]),
        DOWN: torch.stack([down for _, _, down in each]),
    }


def _unpacked(short: str, state: Mapping[str, Tensor]) -> Tensor:
    expert, part = int(short.split(".")[2]), short.split(".")[3]
    if part == "down_proj":
        return state[BLOCK + DOWN][expert]
    gate, up = state[BLOCK + GATE_UP][expert].chunk(2)
    return gate if part == "gate_proj" else up
