"""EAGLE and EAGLE-3 heads: transformers' attention and MLP in the graph that SGLang runs.

EAGLE (SGLang llama_eagle.py): fc over [embedding, feature], layers without a norm before the first, no final norm.
EAGLE-3 (SGLang llama_eagle3.py): fc over the features of several target layers; the layer reads [norm(embedding),
norm(feature)]; what is fed back is the state before the final norm unless `norm_output`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..drafts.formats.eagle_names import O_BIAS, at_layer
from ..drafts.spec import D2T, EAGLE3, T2D, DraftSpec
from ..errors import CkptError, error
from .head import Head, HeadOutput, Tables

NORMED_TWICE = 2  # the first layer of EAGLE-3 reads two vectors side by side


def layer_config(spec: DraftSpec) -> Any:
    """A transformers config with the dimensions of the head's decoder layer."""
    rope = {"rope_type": spec.rope.kind, "rope_theta": spec.rope.theta, **dict(spec.rope.scaling)}
    shared: dict[str, Any] = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": rope,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings or 1 << 20,
        "attention_bias": False,
        "attn_implementation": "sdpa",
    }
    if spec.mla is not None:
        from transformers import DeepseekV3Config

        latent = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return DeepseekV3Config(**shared, **{name: getattr(spec.mla, name) for name in latent})
    from transformers import LlamaConfig, Qwen3Config

    return (Qwen3Config if spec.qk_norm else LlamaConfig)(**shared, head_dim=spec.head_dim)


def attention(spec: DraftSpec, config: Any, layer: int, width: int) -> Any:
    """Self-attention whose inputs are `width` wide: transformers' class with its input projections made anew."""
    if spec.mla is not None:
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

        latent: Any = DeepseekV3Attention(config, layer)
        for name in ("q_a_proj", "kv_a_proj_with_mqa"):
            setattr(latent, name, nn.Linear(width, getattr(latent, name).out_features, bias=False))
        return latent
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    made: Any = (Qwen3Attention if spec.qk_norm else LlamaAttention)(config, layer)
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(made, name, nn.Linear(width, getattr(made, name).out_features, bias=spec.qkv_bias))
    if at_layer(layer, O_BIAS) in spec.tensors:
        made.o_proj = nn.Linear(made.o_proj.in_features, made.o_proj.out_features, bias=True)
    return made


class EagleLayer(nn.Module):
    """One decoder layer. EAGLE's first has no `input_layernorm`; EAGLE-3's have a `hidden_norm` for the feature."""

    def __init__(self, spec: DraftSpec, config: Any, layer: int) -> None:
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

        super().__init__()
        mlp: Any = LlamaMLP
        three, h, eps = spec.kind == EAGLE3, spec.hidden_size, spec.rms_norm_eps
        self.joins = three and layer == 0
        self.before_residual = spec.norms.before_residual
        config.mlp_bias = False
        self.self_attn = attention(spec, config, layer, NORMED_TWICE * h if self.joins else h)
        self.mlp = mlp(config)
        self.input_layernorm = LlamaRMSNorm(h, eps) if three or layer else None
        self.hidden_norm = LlamaRMSNorm(h, eps) if three else None
        self.post_attention_layernorm = LlamaRMSNorm(h, eps)

    def forward(self, x: Tensor, embeds: Tensor, **attending: Any) -> Tensor:
        """`x [B, T, h]` is the residual stream, or the joined feature before the first layer."""
        residual, read = x, x
        if self.hidden_norm is not None:  # EAGLE-3: SGLang's later layers norm with hidden_norm and read no embedding
            read = self.hidden_norm(x)
            if self.joins:
                assert self.input_layernorm is not None
                residual = read if self.before_residual else x
                read = torch.cat([self.input_layernorm(embeds), read], dim=-1)
        elif self.input_layernorm is not None:
            read = self.input_layernorm(x)
        x = residual + self.self_attn(hidden_states=read, **attending)[0]
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleHead(Head):
    """EAGLE (kind "eagle") or EAGLE-3 (kind "eagle3")."""

    def __init__(self, spec: DraftSpec, tables: Tables, boundaries: tuple[int, ...] = ()) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        super().__init__(tables)
        h, wide, eps, self.three = spec.hidden_size, spec.target_hidden_size, spec.rms_norm_eps, spec.kind == EAGLE3
        self.hidden_size, self.boundaries = h, boundaries
        self.feature_size = wide * spec.aux_count if self.three else wide
        self.norm_output, self.norm_before_head = spec.norms.output, spec.norms.before_head
        config = layer_config(spec)
        self.rotary = self._rotary(spec, config, LlamaRotaryEmbedding)
        bias = "fc.bias" in spec.tensors
        self.fc = nn.Linear(self.feature_size if self.three else 2 * h, h, bias=bias)
        self.layers = nn.ModuleList(EagleLayer(spec, config, i) for i in range(spec.num_layers))
        self.norm = LlamaRMSNorm(h, eps) if self.three else None
        self.input_norm = LlamaRMSNorm(self.feature_size, eps) if spec.norms.before_fc else None
        each = [LlamaRMSNorm(wide, eps) for _ in range(spec.aux_count)] if spec.norms.fc else None
        self.fc_norm = nn.ModuleList(each) if each is not None else None
        own_table = self.three and h != wide
        own_head = self.three and not spec.borrows_head and not spec.tied
        self.embed_tokens = nn.Embedding(spec.vocab_size, h) if own_table else None
        self.lm_head = nn.Linear(h, spec.draft_vocab_size, bias=False) if own_head else None
        self.tied = spec.tied
        self.d2t: Tensor | None
        self.t2d: Tensor | None
        self.register_buffer("d2t", None)
        self.register_buffer("t2d", None)

    @staticmethod
    def _rotary(spec: DraftSpec, config: Any, plain: Any) -> Any:
        if spec.mla is None:
            return plain(config)
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

        return DeepseekV3RotaryEmbedding(config)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of `read_head`; what the server replaces by the target's is left out. Raises CkptError."""
        wanted = dict(self.named_parameters())
        for name in (D2T, T2D):
            if name in tensors:
                setattr(self, name, tensors[name])
        if absent := [name for name in wanted if name not in tensors]:
            raise error(
                CkptError,
                "tensors-missing",
                f"the head lacks {len(absent)} tensors",
                expected="every tensor of its kind",
                actual=f"absent: {', '.join(absent[:6])}",
                fix="the head is incomplete",
            )
        kept = {name: tensor for name, tensor in tensors.items() if name in wanted}
        self.load_state_dict(kept, strict=False, assign=True)

    def join(self, hidden: Tensor) -> Tensor:
        """`[B, T, h]` from features of the target; the head's own output passes as it is (SGLang tells them by width)."""
        if hidden.shape[-1] == self.hidden_size:
            return hidden
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.chunk(len(self.fc_norm), dim=-1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        joined: Tensor = self.fc(hidden)
        return joined

    def forward(
        self,
        hidden: Tensor,
        embeds: Tensor,
        positions: Tensor,
        cache: Any = None,
        mask: Tensor | None = None,
        layer: int = 0,
    ) -> HeadOutput:
        x = self.join(hidden) if self.three else self.fc(torch.cat([embeds, hidden], dim=-1))
        rotary = self.rotary(x, positions)
        for block in self.layers:
            x = block(x, embeds, position_embeddings=rotary, attention_mask=mask, cache=cache, position_ids=positions)
        if self.norm is None:
            return HeadOutput(x, x)
        normed = self.norm(x)
        return HeadOutput(normed if self.norm_output else x, normed if self.norm_before_head else x)

    def embed(self, ids: Tensor) -> Tensor:
        """The target's table, or the head's own where its width differs."""
        return super().embed(ids) if self.embed_tokens is None else self.embed_tokens(ids)

    def logits(self, features: Tensor) -> Tensor:
        if self.tied:
            table = self.tables.embedding.detach() if self.embed_tokens is None else self.embed_tokens.weight
            return functional.linear(features, table)
        return super().logits(features) if self.lm_head is None else self.lm_head(features)

    def target_ids(self, ids: Tensor) -> Tensor:
        return ids if self.d2t is None else ids + self.d2t[ids]

    def canonical_state(self) -> dict[str, Tensor]:
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name: tensor for name, tensor in named.items() if not name.startswith("rotary.")}
