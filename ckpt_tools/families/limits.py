"""What of a model Megatron's arguments cannot say; the weights convert all the same."""

from __future__ import annotations

from .dims import DEFAULT_ROPE, LLAMA3, SIGMOID, YARN, Dims

# What --use-rope-scaling fixes (mcore rotary_pos_embedding.py, _apply_scaling); only the factor is an argument.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Defaults of mcore's MLATransformerConfig that no argument reaches.
YARN_FIXED = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}


def inexpressible_rope(d: Dims) -> list[str]:
    """What of the rope no Megatron argument can say."""
    rope = d.rope
    problems = []
    if rope.kind == LLAMA3:
        problems = [
            f"rope {name} {rope.field(name)} (--use-rope-scaling fixes {fixed})"
            for name, fixed in LLAMA3_FIXED.items()
            if rope.field(name) != fixed
        ]
    elif rope.kind != DEFAULT_ROPE and not (d.mla and rope.kind == YARN):
        problems = [f"rope type {rope.kind!r} {dict(rope.scaling)}"]
    if rope.theta != int(rope.theta):
        problems.append(f"rope_theta {rope.theta} (--rotary-base takes whole numbers)")
    return problems


def inexpressible(d: Dims, plugin: bool) -> list[str]:
    """What else no Megatron argument can say. `plugin`: slime's layers of the family, which have more."""
    problems = list(d.unstated)
    if not plugin and d.wide_qk_norm:
        problems.append("norms over the full width of q and k (--qk-layernorm norms every head)")
    if not plugin and d.sandwich_norms:
        problems.append("norms after attention and MLP (slime's Megatron has them)")
    if d.moe and d.moe.score == SIGMOID and not d.moe.norm_topk:
        problems.append("norm_topk_prob false (Megatron's sigmoid router always renormalises)")
    if d.moe and d.moe.score != SIGMOID and d.moe.router_bias:
        problems.append("a selection bias beside softmax scores (Megatron's router has it with sigmoid scores only)")
    return problems


def approximated(d: Dims) -> list[str]:
    """Fields of a yarn rope that Megatron's arguments fix, where the config says otherwise."""
    if not d.mla or d.rope.kind != YARN:
        return []
    stated = ((name, d.rope.field(name), fixed) for name, fixed in YARN_FIXED.items())
    return [
        f"rope {name} {value} (Megatron uses {fixed})" for name, value, fixed in stated if value not in (None, fixed)
    ]
