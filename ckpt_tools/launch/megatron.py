"""The model flags of a training script against the dimensions of its checkpoint: equal, or left to an equal default.

Defaults are Megatron-LM's (megatron/training/arguments.py, core/transformer/transformer_config.py). Flags that choose how to
run (kernels, dispatchers, precision, losses) are the user's own and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import Finding
from ..families.arguments import Argument, model_arguments
from ..families.dims import Dims
from .case import Case, plural
from .flags import Flags, Given
from .patterns import frequencies, unquoted

NAME = "model flags"
CONFIG, SWITCH = "config", "switch"


@dataclass(frozen=True, slots=True)
class Compared:
    """`flags` are the spellings of an argument, `default` what Megatron takes without any; `on` is what a switch sets."""

    flags: tuple[str, ...]
    kind: Callable[[str], Any] | str
    default: Any = None
    on: Any = True


ROPE = ("position-embedding-type", "use-rotary-position-embeddings")
COMPARED: dict[str, Compared] = {
    "num_layers": Compared(("num-layers",), int),
    "hidden_size": Compared(("hidden-size",), int),
    "ffn_hidden_size": Compared(("ffn-hidden-size",), int),
    "num_attention_heads": Compared(("num-attention-heads",), int),
    "kv_channels": Compared(("kv-channels",), int),
    "vocab_size": Compared(("vocab-size",), int),
    "normalization": Compared(("normalization",), str, "LayerNorm"),
    "norm_epsilon": Compared(("norm-epsilon", "layernorm-epsilon"), float, 1e-5),
    "rotary_base": Compared(("rotary-base",), float, 10000.0),
    "rotary_percent": Compared(("rotary-percent",), float, 1.0),
    "rotary_interleaved": Compared(("rotary-interleaved",), SWITCH, False),
    "use_rope_scaling": Compared(("use-rope-scaling",), SWITCH, False),
    "swiglu": Compared(("swiglu",), SWITCH, False),
    "add_bias_linear": Compared(("disable-bias-linear",), SWITCH, True, False),
    "add_qkv_bias": Compared(("add-qkv-bias",), SWITCH, False),
    "untie_embeddings_and_output_weights": Compared(("untie-embeddings-and-output-weights",), SWITCH, False),
    "qk_layernorm": Compared(("qk-layernorm",), SWITCH, False),
    "apply_layernorm_1p": Compared(("apply-layernorm-1p",), SWITCH, False),
    "post_self_attn_layernorm": Compared(("post-self-attn-layernorm",), SWITCH, False),
    "post_mlp_layernorm": Compared(("post-mlp-layernorm",), SWITCH, False),
    "attention_output_gate": Compared(("attention-output-gate",), SWITCH, False),
    "use_gated_attention": Compared(("use-gated-attention",), SWITCH, False),
    "multi_latent_attention": Compared(("multi-latent-attention",), SWITCH, False),
    "q_lora_rank": Compared(("q-lora-rank",), int),
    "kv_lora_rank": Compared(("kv-lora-rank",), int, 32),
    "qk_head_dim": Compared(("qk-head-dim",), int, 128),
    "qk_pos_emb_head_dim": Compared(("qk-pos-emb-head-dim",), int, 64),
    "v_head_dim": Compared(("v-head-dim",), int, 128),
    "rotary_scaling_factor": Compared(("rotary-scaling-factor",), float, 1.0),
    "mscale": Compared(("mscale",), float, 1.0),
    "mscale_all_dim": Compared(("mscale-all-dim",), float, 0.0),
    "num_experts": Compared(("num-experts",), int),
    "moe_layer_freq": Compared(("moe-layer-freq",), frequencies, 1),
    "moe_ffn_hidden_size": Compared(("moe-ffn-hidden-size",), int),
    "moe_shared_expert_intermediate_size": Compared(("moe-shared-expert-intermediate-size",), int),
    "moe_shared_expert_gate": Compared(("moe-shared-expert-gate",), SWITCH, False),
    "moe_router_topk": Compared(("moe-router-topk",), int, 2),
    "moe_router_score_function": Compared(("moe-router-score-function",), str, "softmax"),
    "moe_router_pre_softmax": Compared(("moe-router-pre-softmax",), SWITCH, False),
    "moe_router_enable_expert_bias": Compared(("moe-router-enable-expert-bias",), SWITCH, False),
    "moe_router_topk_scaling_factor": Compared(("moe-router-topk-scaling-factor",), float, 1.0),
    "moe_router_num_groups": Compared(("moe-router-num-groups",), int, 1),
    "moe_router_group_topk": Compared(("moe-router-group-topk",), int, 1),
    "experimental_attention_variant": Compared(("experimental-attention-variant",), str),
    "linear_attention_freq": Compared(("linear-attention-freq",), frequencies),
    "linear_conv_kernel_dim": Compared(("linear-conv-kernel-dim",), int, 4),
    "linear_key_head_dim": Compared(("linear-key-head-dim",), int, 128),
    "linear_value_head_dim": Compared(("linear-value-head-dim",), int, 128),
    "linear_num_key_heads": Compared(("linear-num-key-heads",), int, 16),
    "linear_num_value_heads": Compared(("linear-num-value-heads",), int, 32),
}
MLA = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rotary_scaling_factor")
LINEAR = tuple(name for name in COMPARED if name.startswith("linear_"))
MOE = tuple(name for name in COMPARED if name.startswith("moe_"))


def without_effect(name: str, d: Dims, flags: Flags) -> bool:
    """Arguments that Megatron does not look at for this model, or whose other value means the same."""
    if name in MLA or name in ("mscale", "mscale_all_dim"):
        scaled = d.mla is not None and float(d.rope.field("factor") or 1.0) != 1.0
        return d.mla is None or (name.startswith("mscale") and not scaled)
    if name in ("kv_channels", "add_qkv_bias"):
        return d.mla is not None  # latent attention has sizes of its own and no such bias
    if name in MOE:
        return d.moe is None or (name == "moe_router_pre_softmax" and d.moe.score != "softmax")
    if name == "ffn_hidden_size":
        return d.moe is not None and len(d.moe.layers) == d.num_hidden_layers  # no dense layer
    if name in LINEAR or name == "experimental_attention_variant":
        return d.gdn is None or "spec" in flags
    return name == "vocab_size" and "vocab-size" not in flags  # then it is the tokenizer's


def check_model_flags(case: Case) -> None:
    """Every flag that decides names, shapes or the function that is computed."""
    d, flags = case.dims, case.training
    if d is None or case.family is None:
        case.skipped(NAME, "no checkpoint whose family is known")
        return
    if not flags.given:
        case.skipped(NAME, "no training flags")
        return
    if any(finding.code == "flags-unused" for finding in case.report.errors):
        case.skipped(NAME, "lists of flags never reach the command")
        return
    before = len(case.report.errors)
    spec = case.family.slime_spec if "spec" in flags else None
    wanted = {argument.name: argument for argument in model_arguments(d, 0, spec)}
    for name, compared in COMPARED.items():
        if not without_effect(name, d, flags):
            _compare(case, d, name, compared, wanted.get(name))
    _check_groups(case, d)
    _check_position(case)
    if len(case.report.errors) == before:
        case.passed(NAME, f"those of {case.family.name}", plural(len(flags.given), "flag"))


def _compare(case: Case, d: Dims, name: str, compared: Compared, wanted: Argument | None) -> None:
    given = case.training.first(*compared.flags)
    if given is None and case.training.holes:
        return  # it may stand where nobody could look
    if given is not None and (compared.kind != SWITCH and not case.readable(given)):
        return
    expected = _expected(d, name, compared, wanted)
    if compared.kind == SWITCH:
        actual = compared.on if given else compared.default
    elif given is None:
        actual = _default(d, name, compared)
    else:
        assert callable(compared.kind)
        actual = case.value(case.training, compared.kind, "a value that Megatron can read", *compared.flags)
        if actual is None:
            return
        _remark_quotes(case, compared, given)
    if _same(_normal(name, expected, d), _normal(name, actual, d)):
        return
    _differs(case, name, compared, wanted, given, actual)


def _remark_quotes(case: Case, compared: Compared, given: Given) -> None:
    """A pattern that reaches Megatron with its quotes is evaluated to a text, which it refuses (THUDM/slime#386)."""
    (word,) = given.values
    if compared.kind is frequencies and unquoted(word) != word.strip():
        case.found(
            NAME,
            Finding(
                "flag-quoted-twice",
                f"the quotes are a part of the value of --{given.flag}",
                given.where,
                f"--{given.flag} {unquoted(word)}",
                given.words,
                "take one pair of quotes off, unless another shell does so on the way",
                severity="warning",
            ),
        )


def _expected(d: Dims, name: str, compared: Compared, wanted: Argument | None) -> Any:
    if wanted is None:
        return compared.default
    return list(_moe_layers(d)) if name == "moe_layer_freq" else wanted.value


def _moe_layers(d: Dims) -> list[int]:
    assert d.moe is not None
    return [int(layer in set(d.moe.layers)) for layer in range(d.num_hidden_layers)]


def _default(d: Dims, name: str, compared: Compared) -> Any:
    """What Megatron derives where a flag is absent (validate_args)."""
    if name == "kv_channels":
        return d.hidden_size // d.num_attention_heads
    if name == "moe_ffn_hidden_size":
        return d.intermediate_size
    return compared.default


def _normal(name: str, value: Any, d: Dims) -> Any:
    if isinstance(value, str) and name.endswith("_freq"):
        value = frequencies(value)
    if name == "moe_layer_freq" and isinstance(value, int):
        return [int(layer % value == 0) for layer in range(d.num_hidden_layers)] if value else value
    return value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or (isinstance(b, float) and a is not None):
        return b is not None and abs(float(a) - float(b)) <= 1e-9 * max(abs(float(a)), abs(float(b)))
    return bool(a == b)


def _differs(
    case: Case, name: str, compared: Compared, wanted: Argument | None, given: Given | None, actual: Any
) -> None:
    flag = compared.flags[0]
    line = wanted.words() if wanted else f"no --{flag}"
    if given is None:
        near = case.training.near(flag)
        default = "" if compared.kind == SWITCH or actual is None else f"; Megatron then takes {actual}"
        case.found(
            NAME,
            Finding(
                "flag-missing",
                f"--{flag} is not given, and the checkpoint needs it",
                where=case.model_path,
                expected=line,
                actual=f"no --{flag}{default}" + (f"; --{near} is given" if near else ""),
                fix=f"add {line} (`ckpt-tools megatron-args` prints them all)",
            ),
        )
        return
    code = "flag-value" if wanted else "flag-unexpected"
    what = (
        f"--{flag} is not what the checkpoint has"
        if wanted
        else f"--{flag} is given, and the checkpoint has nothing for it"
    )
    fix = "correct the script, or name the checkpoint that it was written for"
    told, words = line, given.words
    if isinstance(actual, list) and wanted is not None and len(actual) != case.layers:
        told, words = f"{line} ({case.layers} entries)", f"{words} ({len(actual)} entries)"
    case.found(NAME, Finding(code, what, given.where, told, words, fix))


def _check_groups(case: Case, d: Dims) -> None:
    """Key-value groups: without --group-query-attention every head is one."""
    if d.mla is not None or case.training.holes:
        return
    switch = case.training.first("group-query-attention")
    stated = case.number(case.training, "num-query-groups")
    groups = d.num_attention_heads if switch is None else 1 if stated is None else stated
    if groups != d.num_key_value_heads:
        given = case.training.first("num-query-groups", "group-query-attention")
        line = f"--group-query-attention --num-query-groups {d.num_key_value_heads}"
        case.found(
            NAME,
            Finding(
                "flag-value" if given else "flag-missing",
                "the key-value groups are not those of the checkpoint",
                given.where if given else case.model_path,
                line,
                " ".join(g.words for g in (switch, case.training.first("num-query-groups")) if g) or "neither flag",
                f"give {line}",
            ),
        )


def _check_position(case: Case) -> None:
    given = case.training.first(*ROPE)
    if given is None and case.training.holes:
        return
    kind = "rope" if given and given.flag == ROPE[1] else case.text(case.training, ROPE[0]) or "learned_absolute"
    if kind not in ("rope", "yarn"):
        code = "flag-value" if given else "flag-missing"
        where = given.where if given else case.model_path
        what = "the model has rotary positions"
        case.found(NAME, Finding(code, what, where, f"--{ROPE[0]} rope", kind, f"give --{ROPE[0]} rope"))
