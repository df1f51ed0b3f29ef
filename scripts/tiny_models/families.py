"""The table: every family that a tiny model can be made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .configs import (
    deepseek_v3_config,
    deepseek_v32_config,
    glm4_config,
    glm4_moe_config,
    glm4_moe_lite_config,
    glm_moe_dsa_config,
    kimi_k2_config,
    llama_config,
    mimo_config,
    qwen2_config,
    qwen3_5_config,
    qwen3_5_moe_config,
    qwen3_5_wrapper,
    qwen3_config,
    qwen3_moe_config,
    qwen3_next_config,
)
from .forms import EMBEDDING, HEAD, LANGUAGE_MODEL, MODEL, PACKED, PER_EXPERT, Config, Family, Mtp, Sizes

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
