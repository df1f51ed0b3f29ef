"""The kinds of things in a table of tiny models: sizes, MTP layers, families."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
STYLE_VERSION = {"v4": "4.51.0", "v5": "5.7.0"}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
MODEL, LANGUAGE_MODEL = "model.", "model.language_model."
PER_EXPERT, PACKED = "per-expert", "packed"
CHANNEL = "channel"
Fp8 = tuple[int, int] | str
# What block-fp8 releases leave alone although it is two-dimensional.
NOT_FP8 = re.compile(
    r"embed|lm_head|norm|mlp\.gate\.|eh_proj|shared_head|weights_proj|in_proj_(a|b|ba)\.|shared_expert_gate|visual|mtp\.fc"
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one tiny model; ``head_dim`` is None where the caller left it to the family.

    experts: routed experts of a layer. dense: layers before the first one with experts, where a family has such.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int | None
    ffn: int
    vocab: int
    mtp: int
    experts: int = 12
    dense: int = 1

    @property
    def moe_ffn(self) -> int:
        """Width of one expert."""
        return self.ffn // 2

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.heads

    def width(self, symbol: str) -> int:
        """Value of a symbolic dimension: ``h`` hidden, ``2h`` twice hidden, ``v`` vocabulary."""
        return {"h": self.hidden, "2h": 2 * self.hidden, "v": self.vocab}[symbol]


@dataclass(frozen=True)
class Mtp:
    """How a family stores its MTP layers; ``{i}`` is the MTP index and ``{n}`` the layer count plus that index.

    body: prefix under which the names of a decoder layer are repeated: the last one with all that layers can have, but
        with attention.
    extra: name template -> symbolic dimensions of the tensors around that layer.
    copies: name template -> the tensor of which it is an exact copy, where the release stores such copies.
    copied: whether it does unless the caller says otherwise.
    experts: how the layer's experts are stored unless the caller says otherwise; None: as in the decoder.
    """

    body: str
    extra: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, str] = field(default_factory=dict)
    copied: bool = True
    experts: str | None = None


@dataclass(frozen=True)
class Family:
    """One entry of the table.

    loader: transformers' model_type of the class that supplies names and shapes.
    config: the family's fields of config.json, in the "v4" style, for given sizes.
    default_mtp: MTP layers when the caller does not say.
    float32: regular expression of the names kept in float32 whatever the dtype.
    files: extra files of the release, name -> text.
    auto: the auto class of transformers that builds the model.
    prefix: what the names of the language model's tensors start with.
    wrapper: puts the finished config of a language model into that of its multimodal release.
    style: config style of the releases.
    buffers: name template of the rotary buffers that some releases store in every ``{layer}``.
    experts: how the releases store the decoder's experts, if not as transformers writes them.
    """

    loader: str
    config: Callable[[Sizes], Config]
    mtp: Mtp | None = None
    default_mtp: int = 0
    float32: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    prefix: str = MODEL
    wrapper: Callable[[Config, Sizes], Config] | None = None
    style: str = "v4"
    buffers: str | None = None
    experts: str | None = None
