"""MTP heads: the target's own decoder layer (transformers' class) in the frame of two norms, a joint projection, a norm.

SGLang deepseek_nextn.py, glm4_moe_nextn.py, qwen3_next_mtp.py, qwen3_5_mtp.py, mimo_mtp.py. What is fed back is the state
after the final norm, which is also what the shared lm_head reads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..drafts.spec import DraftSpec
from ..errors import CkptError, error
from ..report import listed
from .head import Head, HeadOutput
from .mtp_names import LayerNames, canonical_state, layer_names, module_state
from .target import Target

FULL, LINEAR, SPARSE = "full_attention", "linear_attention", "sparse"
# SGLang's MiMo layer reads a zero embedding at position 0 (mimo_mtp.py, "masking inputs at position 0"); others do not.
BLIND_AT_START = ("mimo",)


class MtpLayer(nn.Module):
    """Frame and decoder layer. `block` may return a tuple whose first entry is the state (GLM-5 adds chosen keys)."""

    def __init__(self, block: nn.Module, norm: Any, width: int, eps: float, hidden_first: bool) -> None:
        super().__init__()
        self.enorm, self.hnorm = norm(width, eps=eps), norm(width, eps=eps)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.block = block
        self.final_layernorm = norm(width, eps=eps)
        self.hidden_first = hidden_first

    def forward(self, hidden: Tensor, embeds: Tensor, **attending: Any) -> Tensor:
        both = [self.enorm(embeds), self.hnorm(hidden)]
        x = self.eh_proj(torch.cat(both[::-1] if self.hidden_first else both, dim=-1))
        out = self.block(x, **attending)
        normed: Tensor = self.final_layernorm(out[0] if isinstance(out, tuple) else out)
        return normed


class MtpHead(Head):
    """One or several MTP layers of one family; layer k drafts the token k steps ahead, a single one drafts all."""

    def __init__(self, spec: DraftSpec, target: Target) -> None:
        super().__init__(target.tables)
        assert spec.family is not None
        self.hidden_size = self.feature_size = spec.hidden_size
        self.depth = spec.mtp_layers
        self.blind_at_start = spec.family.name in BLIND_AT_START
        self.names: list[LayerNames] = layer_names(spec)
        self.config = config = layer_config(target.config, self.depth)
        kind = type(target.body.layers[-1])
        with torch.device("meta"):
            blocks = [kind(config, number) for number in range(self.depth)]
            made = [
                MtpLayer(block, type(block.input_layernorm), self.hidden_size, spec.rms_norm_eps, names.hidden_first)
                for block, names in zip(blocks, self.names, strict=True)
            ]
        self.layers = nn.ModuleList(made)
        self.rotary = (target.body.rotary_emb,)  # a tuple, so that the target's module does not become the head's

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of `read_head`; raises CkptError unless transformers' layer and the head agree."""
        for number, (layer, names) in enumerate(zip(self.layers, self.names, strict=True)):
            state = module_state(names, tensors)
            wanted = layer.state_dict()
            differing = sorted(wanted.keys() ^ state.keys())
            differing += [name for name in wanted.keys() & state.keys() if wanted[name].shape != state[name].shape]
            if differing:
                raise error(
                    CkptError,
                    "mtp-layer-differs",
                    f"MTP layer {number} is not a decoder layer as transformers builds it",
                    expected=listed(sorted(wanted), 4),
                    actual=f"differing: {listed(differing)}",
                    fix="this head cannot be run here; measure it in the server: `smoke --server URL`",
                )
            layer.load_state_dict(state, assign=True)

    def forward(
        self,
        hidden: Tensor,
        embeds: Tensor,
        positions: Tensor,
        cache: Any = None,
        mask: Tensor | None = None,
        layer: int = 0,
    ) -> HeadOutput:
        if self.blind_at_start:
            embeds = embeds.masked_fill((positions == 0)[..., None], 0)
        rotary = self.rotary[0](embeds, positions)
        out = self.layers[layer](
            hidden, embeds, position_embeddings=rotary, attention_mask=mask, position_ids=positions, cache=cache
        )
        return HeadOutput(out, out)

    def new_cache(self) -> Any:
        """By the config: GLM-5 and DeepSeek-V3.2 keep the keys of their indexer as well."""
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def canonical_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for layer, names in zip(self.layers, self.names, strict=True):
            found |= canonical_state(names, {**dict(layer.named_parameters()), **dict(layer.named_buffers())})
        return found


def layer_config(config: Any, count: int) -> Any:
    """The target's decoder config restated for `count` MTP layers numbered from 0: attention, and experts if any."""
    made = copy.deepcopy(config)
    made.num_hidden_layers = count
    kinds = [kind for kind in getattr(config, "layer_types", None) or [FULL] if kind != LINEAR]
    for name, value in (
        ("layer_types", kinds[-1:] * count),
        ("mlp_layer_types", [SPARSE] * count),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
        ("first_k_dense_replace", 0),
        ("indexer_types", ["full"] * count),
    ):
        if getattr(made, name, None) is not None:
            setattr(made, name, value)
    return made
