"""Megatron's model arguments from dimensions: one statement for `megatron-args` and for the args in `common.pt`.

Names are argparse destinations and flags of Megatron-LM (megatron/training/arguments.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .dims import LLAMA3, SIGMOID, Dims, Gdn, Mla, Moe


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
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) >= 1000 else repr(value)
    return str(value)


def _on(name: str, flag: str, value: Any = True) -> Argument:
    return Argument(name, value, flag, switch=True)


def _set(name: str, value: Any) -> Argument:
    return Argument(name, value, "--" + "-".join(name.split("_")))


def model_arguments(d: Dims, mtp: int, spec: tuple[str, str] | None = None) -> list[Argument]:
    """Every argument that this model needs, in the order of slime's scripts.

    `spec` is slime's plugin for layers that Megatron does not have as slime wants them; without it Megatron's own
    arguments for gated delta nets are given.
    """
    return [
        *([Argument("spec", list(spec), "--spec")] if spec else []),
        _on("swiglu", "--swiglu"),
        _set("num_layers", d.num_hidden_layers),
        _set("hidden_size", d.hidden_size),
        _set("ffn_hidden_size", d.intermediate_size),
        _set("num_attention_heads", d.num_attention_heads),
        *_attention(d),
        _set("max_position_embeddings", d.max_position_embeddings),
        *_rope(d),
        _set("normalization", "RMSNorm"),
        _set("norm_epsilon", d.rms_norm_eps),
        *_norms(d),
        _set("vocab_size", d.vocab_size),
        *([] if d.linear_bias else [_on("add_bias_linear", "--disable-bias-linear", False)]),
        *([_on("add_qkv_bias", "--add-qkv-bias")] if d.qkv_bias else []),
        *([] if d.tied else [_on("untie_embeddings_and_output_weights", "--untie-embeddings-and-output-weights")]),
        *(_moe(d, d.moe) if d.moe else []),
        *(_gdn(d.gdn, d.num_hidden_layers, bool(spec)) if d.gdn else []),
        *(_indexer(d.mla) if d.mla and d.mla.index_heads and not spec else []),
        *([_set("mtp_num_layers", mtp)] if mtp else []),
    ]


def _attention(d: Dims) -> list[Argument]:
    kv_channels = _set("kv_channels", d.head_dim)
    if d.mla is None:
        groups = [
            _on("group_query_attention", "--group-query-attention"),
            _set("num_query_groups", d.num_key_value_heads),
            kv_channels,
        ]
        gate = [_on("attention_output_gate", "--attention-output-gate")] if d.output_gate else []
        return groups + gate
    m = d.mla
    return [
        kv_channels,
        _on("multi_latent_attention", "--multi-latent-attention"),
        *([_set("q_lora_rank", m.q_lora_rank)] if m.q_lora_rank else []),
        _set("kv_lora_rank", m.kv_lora_rank),
        _set("qk_head_dim", m.qk_nope_head_dim),
        _set("qk_pos_emb_head_dim", m.qk_rope_head_dim),
        _set("v_head_dim", m.v_head_dim),
        _on("attention_softmax_in_fp32", "--attention-softmax-in-fp32"),
    ]


def _norms(d: Dims) -> list[Argument]:
    found = [_on("qk_layernorm", "--qk-layernorm")] if d.qk_norm or d.wide_qk_norm or d.mla else []
    if d.zero_centred:
        found.append(_on("apply_layernorm_1p", "--apply-layernorm-1p"))
    if d.sandwich_norms:
        found.append(_on("post_self_attn_layernorm", "--post-self-attn-layernorm"))
        found.append(_on("post_mlp_layernorm", "--post-mlp-layernorm"))
    return found


def _rope(d: Dims) -> list[Argument]:
    """Dense models take the old switch, as slime's scripts do; it sets the same destination."""
    rope = d.rope
    plain = d.mla is None and d.moe is None and d.gdn is None
    kind = _on("position_embedding_type", "--use-rotary-position-embeddings", "rope")
    found = [kind if plain else _set("position_embedding_type", "rope"), _set("rotary_base", int(rope.theta))]
    if d.rotary_percent != 1.0:
        found.append(_set("rotary_percent", d.rotary_percent))
    if d.rotary_interleaved:
        found.append(_on("rotary_interleaved", "--rotary-interleaved"))
    if d.mla:
        found += [
            _set("rotary_scaling_factor", float(rope.field("factor") or 1.0)),
            _set("mscale", float(rope.field("mscale") or 1.0)),
            _set("mscale_all_dim", float(rope.field("mscale_all_dim") or 1.0)),
        ]
    elif rope.kind == LLAMA3:
        found.append(_on("use_rope_scaling", "--use-rope-scaling"))
        found.append(_set("rope_scaling_factor", float(rope.field("factor") or 1.0)))
    if d.mla or d.sandwich_norms:
        found.append(_on("apply_rope_fusion", "--no-rope-fusion", False))
    return found


def frequency(layers: tuple[int, ...], count: int) -> str:
    """A layer list as Megatron's list expression: [0]*3+[1]*58."""
    runs: list[list[int]] = []
    for layer in range(count):
        value = int(layer in set(layers))
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return "+".join(f"[{value}]*{length}" for value, length in runs)


def _moe(d: Dims, m: Moe) -> list[Argument]:
    """The experts, then how slime's scripts run them."""
    found = [
        _set("num_experts", m.num_experts),
        _set("moe_layer_freq", frequency(m.layers, d.num_hidden_layers)),
        _set("moe_ffn_hidden_size", m.intermediate_size),
        _set("moe_router_topk", m.top_k),
        _set("moe_router_score_function", m.score),
    ]
    if m.shared_size:
        found.append(_set("moe_shared_expert_intermediate_size", m.shared_size))
    if m.shared_gate:
        found.append(_on("moe_shared_expert_gate", "--moe-shared-expert-gate"))
    if m.scaling != 1.0:
        found.append(_set("moe_router_topk_scaling_factor", m.scaling))
    if m.groups > 1 or d.mla:
        found += [_set("moe_router_num_groups", m.groups), _set("moe_router_group_topk", m.top_groups)]
    if m.router_bias:
        found += [
            _on("moe_router_pre_softmax", "--moe-router-pre-softmax"),
            _on("moe_router_enable_expert_bias", "--moe-router-enable-expert-bias"),
            _set("moe_router_bias_update_rate", 0),
            _set("moe_router_load_balancing_type", m.balancing),
        ]
    elif not m.norm_topk:
        found.append(_on("moe_router_pre_softmax", "--moe-router-pre-softmax"))  # over all experts, before the choice
    if m.score != SIGMOID:
        found.append(_set("moe_token_drop_policy", "probs"))
    return [
        *found,
        _set("moe_aux_loss_coeff", 0),
        _set("moe_router_dtype", "fp32"),
        _set("moe_token_dispatcher_type", "alltoall"),
        _on("moe_grouped_gemm", "--moe-grouped-gemm"),
        _on("moe_permute_fusion", "--moe-permute-fusion"),
    ]


def _indexer(m: Mla) -> list[Argument]:
    """Sparse attention as Megatron has it; slime's plugin reads the Hugging Face config itself."""
    return [
        _set("experimental_attention_variant", "dsa"),
        _set("dsa_indexer_n_heads", m.index_heads),
        _set("dsa_indexer_head_dim", m.index_dim),
        _set("dsa_indexer_topk", m.index_topk),
    ]


def _gdn(g: Gdn, count: int, plugin: bool) -> list[Argument]:
    """slime's plugin reads the Hugging Face config itself; Megatron wants the dimensions."""
    if plugin:
        return [_on("use_gated_attention", "--use-gated-attention")]
    return [
        _set("experimental_attention_variant", "gated_delta_net"),
        _set("linear_attention_freq", frequency(g.layers, count)),
        _set("linear_conv_kernel_dim", g.kernel),
        _set("linear_key_head_dim", g.key_dim),
        _set("linear_value_head_dim", g.value_dim),
        _set("linear_num_key_heads", g.key_heads),
        _set("linear_num_value_heads", g.value_heads),
    ]


def checkpoint_arguments(d: Dims, mtp: int, padded_vocab: int, divisible_by: int, dtype: str) -> dict[str, Any]:
    """The `args` of `common.pt`: what Megatron's check_checkpoint_args and slime's exporter read, all plain values.

    Parallel sizes are 1 because the format does not depend on them; `no_save_optim` and `no_save_rng` tell loaders that
    neither is stored.
    """
    model = {argument.name: argument.value for argument in model_arguments(d, mtp)}
    if d.moe:
        model["moe_layer_freq"] = [int(layer in set(d.moe.layers)) for layer in range(d.num_hidden_layers)]
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
        "num_query_groups": d.num_key_value_heads,
        "group_query_attention": d.num_key_value_heads != d.num_attention_heads,
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
    if d.mla is None and d.num_key_value_heads % tp and tp % d.num_key_value_heads:
        problems.append(f"num_key_value_heads {d.num_key_value_heads}")
    return problems
