#!/usr/bin/env python3
"""Write a tiny, deterministic Hugging Face checkpoint of a given family.

Names and shapes come from transformers' own model classes (what ``save_pretrained`` writes for a model built from the
very ``config.json`` that is released here), so a checkpoint made by this script is independent of ``ckpt_tools``.
Multi-token-prediction layers, which transformers does not build, are declared in the family table below.

Every value depends on the tensor's name and the seed alone, hence neither on sharding nor on order; quantised weights are
made from such values.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

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


def base_config(sizes: Sizes, architecture: str, model_type: str, rope_theta: float) -> Config:
    """Fields that every dense decoder release has, in the "v4" style."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": sizes.ffn,
        "max_position_embeddings": 512,
        "model_type": model_type,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": rope_theta,
        "use_cache": True,
        "vocab_size": sizes.vocab,
    }


def llama_config(sizes: Sizes) -> Config:
    """Fields of a Llama 3.x release, scaled rope included."""
    scaling = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    return base_config(sizes, "LlamaForCausalLM", "llama", 500000.0) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": scaling,
    }


def qwen2_config(sizes: Sizes) -> Config:
    """Fields of a Qwen2.5 release, which names no head_dim and no attention_bias."""
    own: Config = {"max_window_layers": sizes.layers, "sliding_window": 512, "use_sliding_window": False}
    if sizes.head_dim is not None:
        own["head_dim"] = sizes.head_dim
    return base_config(sizes, "Qwen2ForCausalLM", "qwen2", 1000000.0) | own


def qwen3_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3 release."""
    return base_config(sizes, "Qwen3ForCausalLM", "qwen3", 1000000) | {
        "attention_bias": False,
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def mimo_config(sizes: Sizes) -> Config:
    """Fields of a MiMo-7B release."""
    return base_config(sizes, "MiMoForCausalLM", "mimo", 640000) | {
        "attention_bias": True,
        "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
        "head_dim": sizes.head_size,
        "max_window_layers": sizes.layers,
        "num_nextn_predict_layers": sizes.mtp,
        "rms_norm_eps": 1e-05,
        "sliding_window": 512,
        "use_mrope": False,
        "use_sliding_window": False,
    }


def qwen3_moe_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3 MoE release: every layer has experts."""
    return qwen3_config(sizes) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": sizes.moe_ffn,
        "norm_topk_prob": True,
        "num_experts": sizes.experts,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def glm4_config(sizes: Sizes) -> Config:
    """Fields of a dense GLM-4 0414 release."""
    return base_config(sizes, "Glm4ForCausalLM", "glm4", 10000.0) | {
        "attention_bias": True,
        "head_dim": sizes.head_size,
        "pad_token_id": 0,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
    }


def routed_config(sizes: Sizes) -> Config:
    """The routed experts of the DeepSeek and GLM releases, and their count of MTP layers."""
    return {
        "first_k_dense_replace": sizes.dense,
        "moe_intermediate_size": sizes.moe_ffn,
        "n_group": 1,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": sizes.mtp,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
    }


def glm4_moe_config(sizes: Sizes) -> Config:
    """Fields of a GLM-4.5 release."""
    return base_config(sizes, "Glm4MoeForCausalLM", "glm4_moe", 1000000) | {
        **routed_config(sizes),
        "attention_bias": True,
        "head_dim": sizes.head_size,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "use_qk_norm": True,
    }


def latent_config(sizes: Sizes, architecture: str, model_type: str) -> Config:
    """Fields of the releases with latent attention; all widths differ, so that none passes for another."""
    return base_config(sizes, architecture, model_type, 10000) | {
        **routed_config(sizes),
        "attention_bias": False,
        "kv_lora_rank": 20,
        "moe_layer_freq": 1,
        "num_key_value_heads": sizes.heads,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "v_head_dim": 10,
    }


def deepseek_v3_config(sizes: Sizes) -> Config:
    """Fields of DeepSeek-V3: expert groups, yarn."""
    scaling = {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 8,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    }
    own = {"n_group": 4, "topk_group": 2, "rope_scaling": scaling, "ep_size": 1}
    return latent_config(sizes, "DeepseekV3ForCausalLM", "deepseek_v3") | own


def kimi_k2_config(sizes: Sizes) -> Config:
    """Fields of Kimi-K2: DeepSeek-V3 without expert groups, under a name of its own."""
    own = {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
    return deepseek_v3_config(sizes) | own


INDEXER: Config = {"index_head_dim": 128, "index_n_heads": 2, "index_topk": 64}


def deepseek_v32_config(sizes: Sizes) -> Config:
    """Fields of DeepSeek-V3.2: V3 with a sparse-attention indexer in every layer."""
    own = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    return deepseek_v3_config(sizes) | INDEXER | own


def glm4_moe_lite_config(sizes: Sizes) -> Config:
    """Fields of GLM-4.7-Flash."""
    return latent_config(sizes, "Glm4MoeLiteForCausalLM", "glm4_moe_lite") | {"rope_scaling": None}


def glm_moe_dsa_config(sizes: Sizes) -> Config:
    """Fields of GLM-5; ``indexer_types`` of GLM-5.2 comes with ``extra_config``."""
    config = latent_config(sizes, "GlmMoeDsaForCausalLM", "glm_moe_dsa")
    return config | INDEXER | {"indexer_rope_interleave": True, "rope_scaling": None}


def hybrid_config(sizes: Sizes, architecture: str, model_type: str) -> Config:
    """Fields of the Qwen releases with gated delta nets; the last layer of every other two has attention."""
    return base_config(sizes, architecture, model_type, 10000000) | {
        "attention_bias": False,
        "full_attention_interval": 2,
        "head_dim": sizes.head_size,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 12,
        "partial_rotary_factor": 0.25,
    }


def shared_expert_config(sizes: Sizes) -> Config:
    """The experts of the Qwen hybrids."""
    return {
        "moe_intermediate_size": sizes.moe_ffn,
        "num_experts": sizes.experts,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": sizes.moe_ffn + 4,
    }


def qwen3_next_config(sizes: Sizes) -> Config:
    """Fields of Qwen3-Next, which does not declare its MTP layer."""
    own: Config = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "rope_scaling": None}
    config = hybrid_config(sizes, "Qwen3NextForCausalLM", "qwen3_next")
    return config | shared_expert_config(sizes) | own


def layer_types(sizes: Sizes) -> list[str]:
    return ["full_attention" if i % 2 else "linear_attention" for i in range(sizes.layers)]


def qwen3_5_config(sizes: Sizes) -> Config:
    """Fields of a dense Qwen3.5 language model."""
    own = {"attn_output_gate": True, "layer_types": layer_types(sizes), "mtp_num_hidden_layers": sizes.mtp}
    return hybrid_config(sizes, "Qwen3_5ForCausalLM", "qwen3_5_text") | own


def qwen3_5_moe_config(sizes: Sizes) -> Config:
    """Fields of a Qwen3.5 MoE language model, which names no intermediate_size."""
    config = qwen3_5_config(sizes) | shared_expert_config(sizes)
    del config["intermediate_size"]
    return config | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}


def qwen3_5_wrapper(text: Config, sizes: Sizes) -> Config:
    """The config of a Qwen3.5 release with its vision tower, around that of the language model."""
    model_type = text["model_type"].removesuffix("_text")
    vision = {
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 16,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "model_type": f"{model_type}_vision",
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": sizes.hidden,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    version = text.pop("transformers_version")
    architecture = text.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
    return {
        "architectures": [architecture],
        "image_token_id": sizes.vocab - 1,
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "transformers_version": version,
        "video_token_id": sizes.vocab - 2,
        "vision_config": vision,
        "vision_end_token_id": sizes.vocab - 3,
        "vision_start_token_id": sizes.vocab - 4,
    }


MIMO_MTP = Mtp(
    body="model.mtp_layers.{i}.",
    extra={
        "model.mtp_layers.{i}.token_layernorm.weight": ("h",),
        "model.mtp_layers.{i}.hidden_layernorm.weight": ("h",),
        "model.mtp_layers.{i}.input_proj.weight": ("h", "2h"),
        "model.mtp_layers.{i}.final_layernorm.weight": ("h",),
    },
)

MIMO_CONFIGURATION = '''"""Configuration of a MiMo model: Qwen2 with multi-token-prediction layers."""

from transformers.models.qwen2.configuration_qwen2 import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"

    def __init__(self, *args, num_nextn_predict_layers=0, **kwargs):
        self.num_nextn_predict_layers = num_nextn_predict_layers
        super().__init__(*args, **kwargs)
'''

NEXTN_MTP = Mtp(
    body="model.layers.{n}.",
    extra={
        "model.layers.{n}.enorm.weight": ("h",),
        "model.layers.{n}.hnorm.weight": ("h",),
        "model.layers.{n}.eh_proj.weight": ("h", "2h"),
        "model.layers.{n}.shared_head.norm.weight": ("h",),
    },
    copies={
        "model.layers.{n}.embed_tokens.weight": MODEL + EMBEDDING,
        "model.layers.{n}.shared_head.head.weight": HEAD,
    },
)
NEXTN_MTP_ALONE = replace(NEXTN_MTP, copied=False)
QWEN_MTP = Mtp(
    body="mtp.layers.{i}.",
    extra={
        "mtp.pre_fc_norm_embedding.weight": ("h",),
        "mtp.pre_fc_norm_hidden.weight": ("h",),
        "mtp.fc.weight": ("h", "2h"),
        "mtp.norm.weight": ("h",),
    },
    experts=PER_EXPERT,
)
ROUTER_BIAS = r"e_score_correction_bias$|inv_freq$"
DELTA_NET = r"linear_attn\.(A_log|norm\.weight)$"
INV_FREQ = "model.layers.{layer}.self_attn.rotary_emb.inv_freq"


def deepseek(loader: str, config: Callable[[Sizes], Config], mtp: Mtp, default_mtp: int = 1, norms: str = "") -> Family:
    """A family of the DeepSeek kind, with router biases (and ``norms``) in float32."""
    return Family(loader, config, mtp, default_mtp, float32=ROUTER_BIAS + norms, buffers=INV_FREQ)


QWEN3_5 = Family("qwen3_5_text", qwen3_5_config, QWEN_MTP, 1, float32=DELTA_NET, style="v5")
QWEN3_5_MOE = replace(QWEN3_5, loader="qwen3_5_moe_text", config=qwen3_5_moe_config, experts=PACKED)


def with_vision(family: Family) -> Family:
    """The multimodal release of a Qwen3.5 language model."""
    return replace(
        family,
        loader=family.loader.removesuffix("_text"),
        auto="AutoModelForImageTextToText",
        prefix=LANGUAGE_MODEL,
        wrapper=qwen3_5_wrapper,
    )


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", llama_config),
    "qwen2": Family("qwen2", qwen2_config),
    "qwen3": Family("qwen3", qwen3_config),
    "mimo": Family("qwen2", mimo_config, MIMO_MTP, 1, files={"configuration_mimo.py": MIMO_CONFIGURATION}),
    "qwen3_moe": Family("qwen3_moe", qwen3_moe_config),
    "glm4": Family("glm4", glm4_config),
    "glm4_moe": Family("glm4_moe", glm4_moe_config, NEXTN_MTP, 1, float32=ROUTER_BIAS),
    "glm4_moe_lite": deepseek("glm4_moe_lite", glm4_moe_lite_config, NEXTN_MTP),
    "glm_moe_dsa": deepseek("glm_moe_dsa", glm_moe_dsa_config, NEXTN_MTP_ALONE),
    "deepseek_v3": deepseek("deepseek_v3", deepseek_v3_config, NEXTN_MTP),
    "deepseek_v32": deepseek("deepseek_v32", deepseek_v32_config, NEXTN_MTP, norms=r"|norm\.(weight|bias)$"),
    "kimi_k2": deepseek("deepseek_v3", kimi_k2_config, NEXTN_MTP, default_mtp=0),
    "qwen3_next": Family("qwen3_next", qwen3_next_config, QWEN_MTP, 1),
    "qwen3_5": with_vision(QWEN3_5),
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe": with_vision(QWEN3_5_MOE),
    "qwen3_5_moe_text": QWEN3_5_MOE,
}


def to_v5(config: Config) -> Config:
    """Restate a "v4" config in the style of transformers 5: ``dtype`` and ``rope_parameters``, no older spellings."""
    new = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    scaling: Config = config.get("rope_scaling") or {"rope_type": "default"}
    new["rope_parameters"] = dict(sorted({**scaling, "rope_theta": config["rope_theta"]}.items()))
    new["dtype"] = config["torch_dtype"]
    if "partial_rotary_factor" in new:
        new["rope_parameters"]["partial_rotary_factor"] = new.pop("partial_rotary_factor")
    if "max_window_layers" in config:
        new["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
        new["sliding_window"] = None
    if config["model_type"] == "qwen3_moe":
        new["num_local_experts"] = new.pop("num_experts")
    if config["model_type"] == "glm4_moe_lite":
        dense = new.pop("first_k_dense_replace")
        new["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in range(config["num_hidden_layers"])]
    return new


def release_config(family: Family, sizes: Sizes, dtype: str, tied: bool, style: str, extra: Config | None) -> Config:
    """The whole config.json of a tiny release, keys sorted as in most releases."""
    config = family.config(sizes) | {"tie_word_embeddings": tied, "torch_dtype": dtype}
    if style == "v5":
        config = to_v5(config)
    config["transformers_version"] = STYLE_VERSION[style]
    config = dict(sorted((config | (extra or {})).items()))
    return config if family.wrapper is None else family.wrapper(config, sizes)


def oracle_shapes(family: Family, config: Config) -> Shapes:
    """Names and shapes that transformers' own class writes for this config (tied tensors once, as it does)."""
    import transformers
    from transformers import AutoConfig, PreTrainedModel
    from transformers.utils import logging

    hide_progress: Callable[[], None] = logging.disable_progress_bar
    hide_progress()
    build: Callable[[Any], PreTrainedModel] = getattr(transformers, family.auto).from_config
    known = {key: value for key, value in config.items() if key not in ("model_type", "auto_map", "architectures")}
    with torch.random.fork_rng():
        model = build(AutoConfig.for_model(family.loader, **known))
    shapes: Shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="pt") as stored:
                shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def mtp_shapes(family: Family, sizes: Sizes, decoder: Shapes, copied: bool) -> tuple[Shapes, dict[str, str]]:
    """Names and shapes of all MTP layers, and the names among them that copy another tensor."""
    shapes: Shapes = {}
    copies: dict[str, str] = {}
    if family.mtp is None or not sizes.mtp:
        return shapes, copies
    repeated = richest_layer(family.prefix, sizes, decoder)
    for i in range(sizes.mtp):
        index = {"i": i, "n": sizes.layers + i}
        body = family.mtp.body.format(**index)
        shapes |= {body + name: shape for name, shape in repeated.items()}
        shapes |= {name.format(**index): tuple(map(sizes.width, dims)) for name, dims in family.mtp.extra.items()}
        if copied:
            copies |= {name.format(**index): source for name, source in family.mtp.copies.items()}
    return shapes, copies


def richest_layer(prefix: str, sizes: Sizes, decoder: Shapes) -> Shapes:
    """The last decoder layer with attention and the most tensors, by names below the layer's own prefix."""
    layers = [f"{prefix}layers.{i}." for i in range(sizes.layers)]
    found = [{n[len(at) :]: shape for n, shape in decoder.items() if n.startswith(at)} for at in layers]
    return max(reversed(found), key=lambda layer: (any(name.startswith("self_attn.") for name in layer), len(layer)))


def unpacked(shapes: Shapes) -> Shapes:
    """Experts as one matrix each."""
    found: Shapes = {}
    for name, shape in shapes.items():
        at, _, last = name.rpartition(".")
        if last == "gate_up_proj" and at.endswith(".experts"):
            size = (shape[1] // 2, shape[2])
            found |= {f"{at}.{e}.{part}_proj.weight": size for e in range(shape[0]) for part in ("gate", "up")}
        elif last == "down_proj" and at.endswith(".experts"):
            found |= {f"{at}.{e}.down_proj.weight": shape[1:] for e in range(shape[0])}
        else:
            found[name] = shape
    return found


def packed(shapes: Shapes) -> Shapes:
    """Experts of a layer in two tensors, the expert first: ``gate_up_proj`` and ``down_proj``, no ``.weight``."""
    found: Shapes = {}
    for name, shape in shapes.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if match is None:
            found[name] = shape
            continue
        joint = f"{match[1]}.down_proj" if match[3] == "down" else f"{match[1]}.gate_up_proj"
        rows = shape[0] if match[3] == "down" else 2 * shape[0]
        found[joint] = (max(found.get(joint, (0,))[0], int(match[2]) + 1), rows, *shape[1:])
    return found


def with_experts(shapes: Shapes, layout: str | None) -> Shapes:
    """The same experts, one by one or packed; None leaves them as they are."""
    if layout is None:
        return shapes
    return packed(shapes) if layout == PACKED else unpacked(shapes)


def tensor_value(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """``0.05 * randn`` of the given shape (around 1 for norms), seeded by the name: order plays no part."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    value = torch.randn(shape, generator=generator) * 0.05
    return (value + 1 if re.search(r"norm[^.]*\.weight$", name) else value).to(dtype)


def quantised(tensors: Mapping[str, torch.Tensor], blocks: Fp8, scale_dtype: str) -> dict[str, torch.Tensor]:
    """Linear weights in F8_E4M3, each with the scales of its blocks (or output channels) under a name of their own."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not name.endswith(".weight") or NOT_FP8.search(name):
            found[name] = tensor
            continue
        rows, columns = (1, tensor.shape[1]) if isinstance(blocks, str) else blocks
        found[name], scales = block_quantised(tensor.float(), rows, columns, DTYPES[scale_dtype])
        found[name + ("_scale" if blocks == CHANNEL else "_scale_inv")] = scales
    return found


def block_quantised(
    value: torch.Tensor, rows: int, columns: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float8 matrix and its grid of scales; blocks at the lower and right edge are smaller."""
    grid = -(-value.shape[0] // rows), -(-value.shape[1] // columns)
    whole = torch.zeros(grid[0] * rows, grid[1] * columns)
    whole[: value.shape[0], : value.shape[1]] = value
    tiles = whole.view(grid[0], rows, grid[1], columns)
    scales = (tiles.abs().amax(dim=(1, 3)) / torch.finfo(torch.float8_e4m3fn).max).to(scale_dtype)
    scaled = (tiles / scales.float()[:, None, :, None]).clamp(-448, 448).view_as(whole)
    return scaled[: value.shape[0], : value.shape[1]].to(torch.float8_e4m3fn), scales


def fp8_config(blocks: Fp8) -> Config:
    """The quantization_config of such a release."""
    if blocks == CHANNEL:
        return {"format": "float-quantized", "quant_method": "compressed-tensors", "quantization_status": "compressed"}
    own = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}
    return own | {"weight_block_size": list(blocks)}


def fill(shapes: Shapes, copies: Mapping[str, str], family: Family, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint; raises if two of them are equal without being declared copies."""
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        keep = family.float32 is not None and re.search(family.float32, name) is not None
        tensors[name] = tensor_value(name, shape, torch.float32 if keep else DTYPES[dtype], seed)
    contents = {tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors.values()}
    if len(contents) != len(tensors):
        raise ValueError("two tensors have the same value; choose another seed or larger sizes")
    for name, source in copies.items():
        tensors[name] = tensors[source if source in tensors else family.prefix + EMBEDDING].clone()
    return tensors


def write_weights(tensors: Mapping[str, torch.Tensor], out: Path, shards: int) -> None:
    """One model.safetensors, or ``shards`` files with an index; tensors are dealt in the order of their name's crc."""
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"cannot deal {len(tensors)} tensors to {shards} shards")
    if shards == 1:
        save_file(dict(tensors), out / "model.safetensors", metadata={"format": "pt"})
        return
    dealt = sorted(tensors, key=lambda name: (zlib.crc32(name.encode()), name))
    where = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(dealt)}
    for shard in sorted(set(where.values())):
        part = {name: tensors[name] for name in sorted(tensors) if where[name] == shard}
        save_file(part, out / shard, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where}, True)


def write_json(path: Path, value: Config, sort: bool = False) -> None:
    """Write ``value`` in the usual style of releases: indent 2 and a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=sort) + "\n", encoding="utf-8")


def write_sidecars(out: Path, vocab: int, style: str, files: Mapping[str, str]) -> None:
    """Tokenizer (WordLevel of ``vocab`` entries), generation config, chat templates and the family's own files."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"w{i}" for i in range(len(special), vocab))]
    added = [
        {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for i, word in enumerate(special)
    ]
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "<unk>"}
    absent = {"truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None}
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    write_json(out / "tokenizer.json", absent | tokenizer)
    names: Config = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "x_release_note": "keep me"}
    names |= {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(out / "tokenizer_config.json", names)
    generation = {"bos_token_id": 1, "do_sample": False, "eos_token_id": [2], "repetition_penalty": 1.05}
    write_json(out / "generation_config.json", generation | {"transformers_version": STYLE_VERSION[style]})
    templates = {
        "chat_template.jinja": "{% for m in messages %}<s> {{ m['content'] }} </s>{% endfor %}\n",
        "additional_chat_templates/x.jinja": "{% for m in messages %}{{ m['content'] }} {% endfor %}\n",
    }
    for name, text in {**templates, **files}.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def make_tiny(
    family: str,
    out: str | Path,
    *,
    dtype: str = "bfloat16",
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 128,
    vocab: int = 96,
    tied: bool | None = None,
    mtp: int | None = None,
    shards: int = 1,
    seed: int = 0,
    store_tied_head: bool = False,
    extra_config: Config | None = None,
    config_style: str | None = None,
    experts: int = 12,
    dense: int = 1,
    expert_layout: str | None = None,
    mtp_experts: str | None = None,
    mtp_copies: bool | None = None,
    inv_freq: bool = False,
    keep_float32: bool = True,
    fp8: Fp8 | None = None,
    scale_dtype: str = "float32",
) -> Path:
    """Write a tiny checkpoint of ``family`` to the new or empty folder ``out`` and return that folder.

    tied: None means untied. mtp: None means the family's own number. store_tied_head: a tied model that stores
    ``lm_head.weight`` all the same, equal to the embedding. extra_config: fields added to, or replacing, those of
    the language model's config, seen by transformers too. config_style: "v4" (``torch_dtype``, ``rope_theta``) or "v5"
    (``dtype``, ``rope_parameters``); None means that of the family's releases.

    experts: experts per layer. dense: layers before the first with experts (DeepSeek, GLM). expert_layout, mtp_experts:
    "per-expert" or "packed", in the decoder and in the MTP layers; None means as in the family's releases. mtp_copies:
    whether MTP layers repeat embedding and head. inv_freq: store the rotary buffers of every layer. keep_float32: keep
    those tensors in float32 that the releases keep. fp8: quantise linear weights in blocks of (rows, columns), or per
    output "channel"; scale_dtype is that of the scales.
    """
    entry = FAMILIES.get(family)
    if entry is None:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    style = config_style or entry.style
    if dtype not in DTYPES or scale_dtype not in DTYPES or style not in STYLE_VERSION:
        raise ValueError(f"unknown dtype {dtype!r} or config style {config_style!r}")
    if mtp and entry.mtp is None:
        raise ValueError(f"family {family!r} has no MTP layers")
    if isinstance(fp8, str) and fp8 != CHANNEL:
        raise ValueError(f"fp8 is (rows, columns) or {CHANNEL!r}, not {fp8!r}")
    if store_tied_head and not tied:
        raise ValueError("store_tied_head needs tied=True")
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    depth = entry.default_mtp if mtp is None else mtp
    sizes = Sizes(layers, hidden, heads, kv_heads, head_dim, ffn, vocab, depth, experts, dense)
    config = release_config(entry, sizes, dtype, bool(tied), style, extra_config)
    shapes = oracle_shapes(entry, config)
    copied = entry.mtp is not None and (entry.mtp.copied if mtp_copies is None else mtp_copies)
    head, copies = mtp_shapes(entry, sizes, shapes, copied)
    head = with_experts(head, mtp_experts or (entry.mtp and entry.mtp.experts) or expert_layout)
    shapes = with_experts(shapes, expert_layout or entry.experts) | head
    if store_tied_head:
        copies = {HEAD: entry.prefix + EMBEDDING, **copies}
    if inv_freq and entry.buffers:
        size = (config["qk_rope_head_dim"] // 2,)
        shapes |= {entry.buffers.format(layer=layer): size for layer in range(layers)}
    if not keep_float32:
        entry = replace(entry, float32=None)
    tensors = fill(shapes, copies, entry, dtype, seed)
    if fp8 is not None:
        tensors = quantised(tensors, fp8, scale_dtype)
        config["quantization_config"] = fp8_config(fp8)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder, shards)
    write_json(folder / "config.json", config)
    write_sidecars(folder, vocab, style, entry.files)
    return folder


def fp8_blocks(text: str) -> Fp8:
    """The value of --fp8."""
    if text == CHANNEL:
        return text
    rows, columns = map(int, text.split(","))
    return rows, columns


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write a tiny, deterministic Hugging Face checkpoint.")
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out", type=Path, help="folder to write, new or empty")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, help="default: hidden / heads")
    parser.add_argument("--ffn", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=96)
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="tie lm_head to the embedding")
    parser.add_argument("--mtp", type=int, help="MTP layers; default: the family's own number")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store-tied-head", action="store_true", help="store lm_head.weight although tied")
    parser.add_argument("--extra-config", type=json.loads, metavar="JSON", help="fields to add to config.json")
    parser.add_argument("--config-style", choices=sorted(STYLE_VERSION), help="default: the family's own")
    parser.add_argument("--experts", type=int, default=12)
    parser.add_argument("--dense", type=int, default=1, help="layers before the first one with experts")
    parser.add_argument("--expert-layout", choices=(PER_EXPERT, PACKED), help="default: the family's own")
    parser.add_argument("--mtp-experts", choices=(PER_EXPERT, PACKED), help="default: the family's own")
    parser.add_argument("--mtp-copies", action=argparse.BooleanOptionalAction, help="embedding and head in MTP layers")
    parser.add_argument("--inv-freq", action="store_true", help="store the rotary buffers of every layer")
    parser.add_argument("--keep-float32", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fp8", type=fp8_blocks, metavar="ROWS,COLUMNS|channel", help="quantise linear weights")
    parser.add_argument("--scale-dtype", choices=sorted(DTYPES), default="float32")
    options = vars(parser.parse_args(argv))
    try:
        print(make_tiny(options.pop("family"), options.pop("out"), **options))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"make_tiny: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
