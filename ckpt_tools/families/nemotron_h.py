"""Nemotron-H and Nemotron 3: Mamba-2, attention, MoE and MLP layers in a pattern, each a layer of its own.

Megatron builds it as a hybrid (Mamba) model: names are those of mcore's mamba_layer_specs.py and mamba_mixer.py, whose joint
projection and filters are stored in pieces. MTP layers are hybrid blocks as well; on disk they keep `mtp_model_layer`.
"""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import Shape, copy, grouped_qkv
from ..mapping.rules import Axis, Rule, Spelling, State, Table
from . import blocks
from .base import HYBRID_LOGITS, Family, Variants
from .blocks import Place, plain, rule, states
from .config import Fields
from .dims import SIGMOID, Dims, Mamba, Moe, Rope
from .moe import PRE_MLP_NORM
from .reading import read_head_dim, require

MAMBA, ATTENTION, MLP, MOE = "M", "*", "-", "E"
WORDS = {"mamba": MAMBA, "linear_attention": MAMBA, "attention": ATTENTION, "full_attention": ATTENTION}
WORDS |= {"mlp": MLP, "moe": MOE}
IN_PROJ, CONV = ("z", "x", "B", "C", "dt"), ("x", "B", "C")  # mcore mamba_mixer.py, sharded_state_dict
ODD = ("a pattern of Mamba, attention, MoE and MLP layers (--hybrid-override-pattern and the --mamba flags)",)


def pattern(fields: Fields, spelled: str, listed: str, count: int | None) -> str:
    """A layer kind per letter: `spelled` as such, `listed` as words."""
    name = fields.first(spelled, listed)
    value = fields.value(name)
    kinds = "".join(WORDS.get(word, "?") for word in value) if isinstance(value, list) else value
    fits = isinstance(kinds, str) and bool(kinds) and set(kinds) <= set(WORDS.values())
    if not fits or (count is not None and len(kinds) != count):
        fields.wrong(name, f"{count or 'some'} layers of the kinds M, E, * and -", value)
        return ATTENTION * (count or 1)
    return str(kinds)


def read_moe(fields: Fields, layers: str) -> Moe | None:
    if MOE not in layers:
        return None
    shared = fields.size("moe_shared_expert_intermediate_size")
    return Moe(
        layers=tuple(i for i, kind in enumerate(layers) if kind == MOE),
        num_experts=fields.size("n_routed_experts"),
        intermediate_size=fields.size("moe_intermediate_size"),
        top_k=fields.size("num_experts_per_tok"),
        shared_size=fields.size("n_shared_experts") * shared,
        router_bias=True,
        score=SIGMOID,
        scaling=fields.number("routed_scaling_factor"),
        groups=fields.value("n_group") or 1,
        top_groups=fields.value("topk_group") or 1,
        norm_topk=fields.flag("norm_topk_prob"),
        latent_size=fields.value("moe_latent_size") or 0,
    )


def dims(fields: Fields) -> Dims:
    """No rotary embedding; no biases but the filters' (`use_conv_bias`)."""
    require(fields, use_bias=False, attention_bias=False, mlp_bias=False, mamba_proj_bias=False, mlp_hidden_act="relu2")
    count, heads = fields.size("num_hidden_layers"), fields.size("num_attention_heads")
    layers = pattern(fields, "hybrid_override_pattern", "layers_block_type", count)
    mtp = pattern(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type", None) if fields.mtp_layers() else ""
    size = fields.size("attention_head_dim") if fields.has("attention_head_dim") else read_head_dim(fields, heads)
    moe = read_moe(fields, layers)
    return Dims(
        hidden_size=fields.size("hidden_size"),
        num_hidden_layers=count,
        num_attention_heads=heads,
        num_key_value_heads=fields.size("num_key_value_heads"),
        head_dim=size,
        intermediate_size=fields.size("intermediate_size" if moe is None or MLP in layers else "moe_intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        rms_norm_eps=fields.number(fields.first("layer_norm_epsilon", "norm_eps", "rms_norm_eps")),
        rope=Rope(10000.0),
        tied=fields.flag("tie_word_embeddings"),
        moe=moe,
        mamba=Mamba(
            pattern=layers,
            mtp_pattern=mtp,
            heads=fields.size("mamba_num_heads"),
            head_dim=fields.size("mamba_head_dim"),
            groups=fields.size("n_groups"),
            state=fields.size("ssm_state_size"),
            kernel=fields.size("conv_kernel"),
            conv_bias=fields.flag("use_conv_bias"),
        ),
        unstated=ODD,
    )


def mamba_layer(d: Dims, at: Place) -> list[Rule]:
    m, h = _mamba(d), d.hidden_size
    inner, states_ = m.heads * m.head_dim, m.groups * m.state
    sizes = (inner, inner, states_, states_, m.heads)
    filters = inner + 2 * states_
    pieces = tuple(zip(CONV, sizes[1:4], strict=True))
    joint = plain(at, "mixer.in_proj.weight", "mixer.in_proj.weight", sum(sizes), h)
    conv = plain(at, "mixer.conv1d.weight", "mixer.conv1d.weight", filters, 1, m.kernel)
    bias = plain(at, "mixer.conv1d.bias", "mixer.conv1d.bias", filters)
    return [
        plain(at, "mixer.in_proj.layer_norm_weight", "norm.weight", h),
        replace(joint, pieces=tuple(zip(IN_PROJ, sizes, strict=True))),
        replace(conv, pieces=pieces),
        *([replace(bias, pieces=pieces)] if m.conv_bias else []),
        *(plain(at, f"mixer.{name}", f"mixer.{name}", m.heads) for name in ("A_log", "D", "dt_bias")),
        plain(at, "mixer.norm.weight", "mixer.norm.weight", inner),
        plain(at, "mixer.out_proj.weight", "mixer.out_proj.weight", h, inner),
    ]


def _mamba(d: Dims) -> Mamba:
    assert d.mamba is not None, "the family read no Mamba dimensions"
    return d.mamba


def attention_layer(d: Dims, at: Place) -> list[Rule]:
    q, kv, h = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim, d.hidden_size
    rows = {"q": q, "k": kv, "v": kv}
    parts: dict[str, Shape] = {f"mixer.{name}_proj.weight": (count, h) for name, count in rows.items()}
    qkv = grouped_qkv(d.num_attention_heads, d.num_key_value_heads, d.head_dim)
    return [
        plain(at, blocks.INPUT_NORM, "norm.weight", h),
        rule(at, "self_attention.linear_qkv.weight", parts, qkv),
        plain(at, "self_attention.linear_proj.weight", "mixer.o_proj.weight", h, q),
    ]


def mlp_layer(d: Dims, at: Place) -> list[Rule]:
    """Not gated: squared ReLU."""
    f, h = d.intermediate_size, d.hidden_size
    return [
        plain(at, "mlp.linear_fc1.layer_norm_weight", "norm.weight", h),
        plain(at, "mlp.linear_fc1.weight", "mixer.up_proj.weight", f, h),
        plain(at, "mlp.linear_fc2.weight", "mixer.down_proj.weight", h, f),
    ]


def moe_layer(d: Dims, at: Place) -> list[Rule]:
    """Experts see the hidden state, or a latent one between two projections that all share."""
    m, h = d.moe, d.hidden_size
    assert m is not None
    each = replace(at, axes=(*at.axes, Axis("expert", range(m.num_experts))))
    width, size, experts = m.latent_size or h, m.intermediate_size, "mlp.experts.experts."
    bias = plain(at, "mlp.router.expert_bias", "mixer.gate.e_score_correction_bias", m.num_experts)
    latent = [
        plain(at, "mlp.fc1_latent_proj.weight", "mixer.fc1_latent_proj.weight", width, h),
        plain(at, "mlp.fc2_latent_proj.weight", "mixer.fc2_latent_proj.weight", h, width),
    ]
    shared = "mixer.shared_experts."
    return [
        plain(at, PRE_MLP_NORM, "norm.weight", h),
        plain(at, "mlp.router.weight", "mixer.gate.weight", m.num_experts, h),
        replace(bias, keep_dtype=True),
        *(latent if m.latent_size else []),
        plain(each, experts + "linear_fc1.weight", "mixer.experts.{expert}.up_proj.weight", size, width),
        plain(each, experts + "linear_fc2.weight", "mixer.experts.{expert}.down_proj.weight", width, size),
        plain(at, "mlp.shared_experts.linear_fc1.weight", shared + "up_proj.weight", m.shared_size, h),
        plain(at, "mlp.shared_experts.linear_fc2.weight", shared + "down_proj.weight", h, m.shared_size),
    ]


LAYERS = {MAMBA: mamba_layer, ATTENTION: attention_layer, MLP: mlp_layer, MOE: moe_layer}
MODULES = {
    MAMBA: ("mixer.in_proj", "mixer.out_proj", "mixer.norm"),
    ATTENTION: tuple(f"self_attention.{name}" for name in ("linear_qkv", "linear_proj", "core_attention")),
    MLP: ("mlp.linear_fc1", "mlp.linear_fc2"),
    MOE: (
        "pre_mlp_layernorm",
        *(f"mlp.{name}" for name in ("fc1_latent_proj", "fc2_latent_proj")),
        *(f"mlp.shared_experts.{name}" for name in ("linear_fc1", "linear_fc2")),
    ),
}


def mtp_rules(d: Dims, count: int) -> list[Rule]:
    """MTP layer k is a block of L layers, in Hugging Face numbers k L, k L + 1, ...; its frame hangs on the first and last."""
    kinds = _mamba(d).mtp_pattern
    length, found = len(kinds), []
    for inner, kind in enumerate(kinds):
        found += LAYERS[kind](d, _inside(inner, length, count))
    if not kinds:
        return []
    first, last = (
        replace(_inside(i, length, count), megatron=(Spelling("mtp.layers.{mtp}."),)) for i in (0, length - 1)
    )
    found += [plain(first, f"{name}.weight", f"{name}.weight", d.hidden_size) for name in ("enorm", "hnorm")]
    found.append(plain(first, "eh_proj.weight", "eh_proj.weight", d.hidden_size, 2 * d.hidden_size))
    found.append(plain(last, "final_layernorm.weight", "final_layernorm.weight", d.hidden_size))
    return found


def layer_states(d: Dims, at: Place, kind: str) -> tuple[State, ...]:
    found = states(at, *MODULES[kind])
    if kind != MOE or d.moe is None:
        return found
    each = replace(at, axes=(*at.axes, Axis("expert", range(d.moe.num_experts))))
    return (*found, *states(each, *(f"mlp.experts.experts.{name}" for name in ("linear_fc1", "linear_fc2"))))


def mtp_states(d: Dims, count: int) -> list[State]:
    kinds = _mamba(d).mtp_pattern
    found = [state for i, kind in enumerate(kinds) for state in layer_states(d, _inside(i, len(kinds), count), kind)]
    return [*found, *blocks.mtp_frame_states(_inside(0, len(kinds), count))] if kinds else []


def _inside(inner: int, length: int, count: int) -> Place:
    axis = Axis("mtp", range(count), range(inner, inner + count * length, length))
    return Place("mtp.layers.{mtp}.", (Spelling(f"mtp.layers.{{mtp}}.mtp_model_layer.layers.{inner}."),), (axis,))


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    m = _mamba(d)
    rules: list[Rule] = []
    modules: list[State] = list(states(blocks.OUTER, "decoder.final_norm", "output_layer"))
    for kind, made in LAYERS.items():
        if layers := tuple(i for i, each in enumerate(m.pattern) if each == kind):
            at = blocks.decoder_place(d, "backbone.layers.{layer}.", layers)
            rules += made(d, at)
            modules += layer_states(d, at, kind)
    embedding, norm, *head = blocks.outer(d, padded_vocab)
    return Table(
        rules=(
            replace(embedding, hf=("backbone.embeddings.weight",)),
            rule(
                blocks.OUTER,
                "decoder.final_norm.weight",
                {"backbone.norm_f.weight": norm.shapes[0]},
                copy(d.hidden_size),
            ),
            *head,
            *rules,
            *(mtp_rules(d, mtp) if mtp else ()),
        ),
        states=(*modules, *(mtp_states(d, mtp) if mtp else ())),
    )


FAMILY = Family(
    "nemotron_h",
    "Nemotron-H, Nemotron 3 (Nano, Super)",
    ("nemotron_h",),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="NemotronHForCausalLMMTP",
    proof=HYBRID_LOGITS,
)
