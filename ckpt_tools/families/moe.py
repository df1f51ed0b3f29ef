"""Mixture-of-experts MLPs: router, experts (one tensor each or packed), shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..mapping.arrangement import Arrangement, Shape, copy, gate_over_up
from ..mapping.rules import Axis, Codec, Rule, Spelling, State
from .base import HF, Variant
from .blocks import Place, plain, rule, states
from .dims import Dims, Moe

PER_EXPERT, PACKED, STACKED, TRANSPOSED = "per-expert", "packed", "stacked", "transposed"


@dataclass(frozen=True, slots=True)
class MoeNames:
    """Hugging Face names of a MoE MLP, below the layer's prefix."""

    norm: str = "post_attention_layernorm.weight"
    router: str = "mlp.gate.weight"
    bias: str = "mlp.gate.e_score_correction_bias"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate.weight"


NAMES = MoeNames()
# TransformerEngine keeps the norm apart in MoE layers, the local spec writes the dense layer's fused name for it
# (mcore gpt_layer_specs.py, sharded_state_dict_keys_map). Both are written; they share their bytes.
PRE_MLP_NORM = (Spelling("pre_mlp_layernorm.weight"), Spelling("mlp.linear_fc1.layer_norm_weight"))


def moe_mlp(d: Dims, at: Place, packing: str = PER_EXPERT, names: MoeNames = NAMES) -> tuple[Rule, ...]:
    """A MoE MLP with its input norm. `packing` says how the Hugging Face side stores the experts."""
    m = _moe(d)
    rules = [
        plain(at, PRE_MLP_NORM, names.norm, d.hidden_size),
        plain(at, "mlp.router.weight", names.router, m.num_experts, d.hidden_size),
        *_experts(m, d.hidden_size, at, packing, names),
    ]
    if m.router_bias:
        rules.append(replace(plain(at, "mlp.router.expert_bias", names.bias, m.num_experts), keep_dtype=True))
    if m.shared_size:
        rules += shared_experts(d.hidden_size, m.shared_size, at, names)
    if m.shared_gate:
        rules.append(plain(at, "mlp.shared_experts.gate_weight", names.shared_gate, 1, d.hidden_size))
    return tuple(rules)


def _moe(d: Dims) -> Moe:
    assert d.moe is not None, "the family read no MoE dimensions"
    return d.moe


def _experts(m: Moe, hidden: int, at: Place, packing: str, names: MoeNames) -> tuple[Rule, Rule]:
    """fc1 `[2f, h]` and fc2 `[h, f]` per expert; Megatron always stacks experts, packed releases do as well.

    STACKED: gate, up and down, each a stack of its own. TRANSPOSED: packed, matrices as `[h, 2f]` and `[f, h]`.
    """
    size = m.intermediate_size
    each = replace(at, axes=(*at.axes, Axis("expert", range(m.num_experts))))
    if packing in (PACKED, TRANSPOSED):
        both = Arrangement(copy(2 * size).blocks, cuts=(size,))
        gate_up_name, down = f"{names.experts}.gate_up_proj", f"{names.experts}.down_proj"
        fc1 = rule(each, "mlp.experts.experts.linear_fc1.weight", {gate_up_name: (2 * size, hidden)}, both)
        if packing == TRANSPOSED:
            fc2 = plain(each, "mlp.experts.experts.linear_fc2.weight", down, hidden, size)
            return transposed(fc1), transposed(fc2)
    else:
        one = names.experts + ("." if packing == STACKED else ".{expert}.")
        gate_up: dict[str, Shape] = {
            f"{one}{names.gate}.weight": (size, hidden),
            f"{one}{names.up}.weight": (size, hidden),
        }
        fc1 = rule(each, "mlp.experts.experts.linear_fc1.weight", gate_up, gate_over_up(size))
        down = f"{one}{names.down}.weight"
    return fc1, plain(each, "mlp.experts.experts.linear_fc2.weight", down, hidden, size)


def transposed(made: Rule) -> Rule:
    """The rule for a matrix that the release stores with its axes exchanged."""
    rows, columns = made.shapes[0]
    return replace(made, codec=Codec("transposed", (columns, rows), made.hf[0]))


def shared_experts(hidden: int, size: int, at: Place, names: MoeNames = NAMES) -> tuple[Rule, Rule]:
    gate_up: dict[str, Shape] = {
        f"{names.shared}.gate_proj.weight": (size, hidden),
        f"{names.shared}.up_proj.weight": (size, hidden),
    }
    fc1 = rule(at, "mlp.shared_experts.linear_fc1.weight", gate_up, gate_over_up(size))
    return fc1, plain(at, "mlp.shared_experts.linear_fc2.weight", f"{names.shared}.down_proj.weight", hidden, size)


def moe_states(d: Dims, at: Place) -> tuple[State, ...]:
    m = _moe(d)
    each = replace(at, axes=(*at.axes, Axis("expert", range(m.num_experts))))
    shared = ("mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2") if m.shared_size else ()
    experts = states(each, "mlp.experts.experts.linear_fc1", "mlp.experts.experts.linear_fc2")
    return (*experts, *states(at, "pre_mlp_layernorm", "mlp.linear_fc1", *shared))


def packing_variant(kind: str, prefixes: tuple[str, ...], names: MoeNames = NAMES) -> Variant:
    """Per-expert or packed experts, told apart by names of the first expert.

    `prefixes` may spell {layer}, the first MoE layer, and {nextn}, the number after the last decoder layer.
    """

    def marks(d: Dims) -> dict[str, tuple[str, ...]]:
        first = d.moe.layers[0] if d.moe and d.moe.layers else 0
        places = [prefix.format(layer=first, nextn=d.num_hidden_layers) + names.experts for prefix in prefixes]
        return {
            PER_EXPERT: tuple(f"{place}.0.{names.gate}.weight" for place in places),
            PACKED: tuple(f"{place}.gate_up_proj" for place in places),
        }

    return Variant(kind, HF, (PER_EXPERT, PACKED), marks)


def transposed_variant(kind: str, prefix: str) -> Variant:
    """Packed experts, transposed or not: names are the same, and at least one of the two matrices is not square."""

    def both(d: Dims) -> tuple[int, str, int, int]:
        """The experts, the matrix that tells, and its rows and columns untransposed."""
        m = _moe(d)
        if 2 * m.intermediate_size != d.hidden_size:
            return m.num_experts, "gate_up_proj", 2 * m.intermediate_size, d.hidden_size
        return m.num_experts, "down_proj", d.hidden_size, m.intermediate_size

    def marks(d: Dims) -> dict[str, tuple[str, ...]]:
        first = _moe(d).layers[0] if _moe(d).layers else 0
        name = f"{prefix.format(layer=first)}{NAMES.experts}.{both(d)[1]}"
        return {TRANSPOSED: (name,), PACKED: (name,)}

    def shapes(d: Dims) -> dict[str, Shape]:
        experts, _, rows, columns = both(d)
        return {TRANSPOSED: (experts, columns, rows), PACKED: (experts, rows, columns)}

    return Variant(kind, HF, (TRANSPOSED, PACKED), marks, shapes)
