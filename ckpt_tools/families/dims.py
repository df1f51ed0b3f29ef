"""The dimensions that decide names, shapes and Megatron's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_ROPE, LLAMA3, YARN = "default", "llama3", "yarn"
SOFTMAX, SIGMOID = "softmax", "sigmoid"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base, type ("default", "llama3", "yarn", ...) and the type's own fields."""

    theta: float
    kind: str = DEFAULT_ROPE
    scaling: tuple[tuple[str, Any], ...] = ()

    def field(self, name: str) -> Any:
        return dict(self.scaling).get(name)


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts. `layers` are the decoder layers that have it; `shared_size` is 0 without shared experts.

    `score` is the router's score function, `scaling` its factor on the routed output, `norm_topk` whether the chosen
    experts' scores are made to sum to one.
    """

    layers: tuple[int, ...]
    num_experts: int
    intermediate_size: int
    top_k: int
    shared_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    score: str = SOFTMAX
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    norm_topk: bool = True
    balancing: str = "seq_aux_loss"


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention; `q_lora_rank` is None where queries are projected directly.

    `indexer` are the decoder layers with a DSA indexer (sparse attention), `index_heads` of `index_dim`; it keeps the
    best `index_topk` positions.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: tuple[int, ...] = ()
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0


@dataclass(frozen=True, slots=True)
class Gdn:
    """Gated delta net; `layers` are the decoder layers that have it instead of attention."""

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """Rows of all key (and of all query) heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Sliding-window layers with heads of their own (MiMo-V2); `full_*` are fields of the other layers that Dims lacks."""

    layers: tuple[int, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int
    full_v_head_dim: int
    sinks: bool
    full_sinks: bool


@dataclass(frozen=True, slots=True)
class Dims:
    """A decoder-only model; names as in Hugging Face configs. `linear_bias`: biases on every projection.

    `output_gate`: q_proj holds a gate beside every query head. `sandwich_norms`: norms after attention and MLP as well.
    `wide_qk_norm`: norms over the full width of q and k.
    `zero_centred`: norms store w of (1 + w). `rotary_percent`: the rotated share of a head. `unstated`: what of the model
    no Megatron argument says, in words.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool = False
    linear_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    output_gate: bool = False
    sandwich_norms: bool = False
    zero_centred: bool = False
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    gdn: Gdn | None = None
    hybrid: Hybrid | None = None
    unstated: tuple[str, ...] = ()

    @property
    def uniform(self) -> bool:
        """All decoder layers hold the same tensors, and Megatron is told so by plain numbers, not by lists."""
        return self.moe is None and self.gdn is None
