"""Megatron's model arguments from dimensions: one statement for `megatron-args` and for the args in `common.pt`.

Names are argparse destinations and flags of Megatron-LM (megatron/training/arguments.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .dims import DEFAULT_ROPE, Dims, Rope

LLAMA3 = "llama3"
# What --use-rope-scaling fixes (mcore rotary_pos_embedding.py, _apply_scaling); only the factor is an argument.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argparse destination with its value, and the flag that sets it; a flag without value is a switch."""

    name: str
    value: Any
    flag: str
    switch: bool = False

    def words(self) -> str:
        """As written on a command line."""
        return self.flag if self.switch else f"{self.flag} {_word(self.value)}"


def _word(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) >= 1000 else repr(value)
    return str(value)


def _on(name: str, flag: str, value: Any = True) -> Argument:
    return Argument(name, value, flag, switch=True)


def _set(name: str, value: Any) -> Argument:
    return Argument(name, value, "--" + "-".join(name.split("_")))


def model_arguments(d: Dims, mtp: int) -> list[Argument]:
    """Every argument that this model needs, in the order of slime's scripts."""
    found = [
        _on("swiglu", "--swiglu"),
        _set("num_layers", d.num_hidden_layers),
        _set("hidden_size", d.hidden_size),
        _set("ffn_hidden_size", d.intermediate_size),
        _set("num_attention_heads", d.num_attention_heads),
        _on("group_query_attention", "--group-query-attention"),
        _set("num_query_groups", d.num_key_value_heads),
        _set("kv_channels", d.head_dim),
        _set("max_position_embeddings", d.max_position_embeddings),
        _on("position_embedding_type", "--use-rotary-position-embeddings", "rope"),
        _set("normalization", "RMSNorm"),
        _set("norm_epsilon", d.rms_norm_eps),
        _set("rotary_base", int(d.rope.theta)),
        *_rope_arguments(d.rope),
        _set("vocab_size", d.vocab_size),
    ]
    if not d.linear_bias:
        found.append(_on("add_bias_linear", "--disable-bias-linear", False))
    if d.qkv_bias:
        found.append(_on("add_qkv_bias", "--add-qkv-bias"))
    if d.qk_norm:
        found.append(_on("qk_layernorm", "--qk-layernorm"))
    if not d.tied:
        found.append(_on("untie_embeddings_and_output_weights", "--untie-embeddings-and-output-weights"))
    if mtp:
        found.append(_set("mtp_num_layers", mtp))
    return found


def _rope_arguments(rope: Rope) -> list[Argument]:
    if rope.kind != LLAMA3:
        return []
    return [
        _on("use_rope_scaling", "--use-rope-scaling"),
        Argument("rope_scaling_factor", float(rope.field("factor") or 1.0), "--rope-scaling-factor"),
    ]


def inexpressible(d: Dims) -> list[str]:
    """What of the rope no Megatron argument can say; the weights convert all the same."""
    rope = d.rope
    if rope.kind == DEFAULT_ROPE:
        problems = []
    elif rope.kind == LLAMA3:
        problems = [
            f"rope {name} {rope.field(name)} (--use-rope-scaling fixes {fixed})"
            for name, fixed in LLAMA3_FIXED.items()
            if rope.field(name) != fixed
        ]
    else:
        problems = [f"rope type {rope.kind!r} {dict(rope.scaling)}"]
    if rope.theta != int(rope.theta):
        problems.append(f"rope_theta {rope.theta} (--rotary-base takes whole numbers)")
    return problems


def checkpoint_arguments(d: Dims, mtp: int, padded_vocab: int, divisible_by: int, dtype: str) -> dict[str, Any]:
    """The `args` of `common.pt`: what Megatron's check_checkpoint_args and slime's exporter read, all plain values.

    Parallel sizes are 1 because the format does not depend on them; `no_save_optim` and `no_save_rng` tell loaders that
    neither is stored.
    """
    model = {argument.name: argument.value for argument in model_arguments(d, mtp)}
    absent = {
        "add_qkv_bias": False,
        "add_bias_linear": True,
        "qk_layernorm": False,
        "untie_embeddings_and_output_weights": False,
        "mtp_num_layers": None,
        "use_rope_scaling": False,
        "num_experts": None,
        "q_lora_rank": None,
        "multi_latent_attention": False,
    }
    return {
        **absent,
        **model,
        "add_position_embedding": True,
        "padded_vocab_size": padded_vocab,
        "make_vocab_size_divisible_by": divisible_by,
        "tokenizer_type": "HuggingFaceTokenizer",
        "rotary_percent": 1.0,
        "bf16": dtype == "BF16",
        "fp16": dtype == "F16",
        "seq_length": d.max_position_embeddings,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "context_parallel_size": 1,
        "world_size": 1,
        "data_parallel_size": 1,
        "no_save_optim": True,
        "no_save_rng": True,
        "ckpt_format": "torch_dist",
        "ckpt_fully_parallel_save": False,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
    }


def padded_vocabulary(vocab: int, divisible_by: int, tp: int) -> int:
    """Megatron's rule: the next multiple of divisible_by * tp (megatron/core/tokenizers vocab padding)."""
    step = divisible_by * tp
    return -(-vocab // step) * step


def indivisible(d: Dims, tp: int) -> list[str]:
    """Dimensions that `tp` ranks cannot share. Fewer key-value groups than ranks are allowed if they divide the ranks."""
    problems = [
        f"{name} {value}"
        for name, value in (("num_attention_heads", d.num_attention_heads), ("intermediate_size", d.intermediate_size))
        if value % tp
    ]
    if d.num_key_value_heads % tp and tp % d.num_key_value_heads:
        problems.append(f"num_key_value_heads {d.num_key_value_heads}")
    return problems
