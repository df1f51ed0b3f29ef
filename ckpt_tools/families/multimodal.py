"""Multimodal releases around supported language models: which, under which names, beside which towers.

Names are those of the releases as transformers' classes read and write them (their conversion_mapping.py included).
"""

from __future__ import annotations

from dataclasses import replace

from . import deepseek_v3, glm4, glm4_moe, qwen2, qwen3, qwen3_moe, step3p5
from .moe import transposed_variant
from .wrappers import INNER, OUTER, TEXT, Text, wrapped

VISUAL = (("model", "visual"),)
# Releases store experts packed and transposed, transformers 5 writes them packed only (its conversion_mapping.py).
_QWEN3_VL_MOE = replace(qwen3_moe.FAMILY, variants=(transposed_variant("experts", "model.layers.{layer}."),))

FAMILIES = (
    wrapped(
        qwen2.FAMILY,
        ("qwen2_vl", "qwen2_5_vl"),
        (INNER, TEXT),
        (*VISUAL, ("visual",)),
        Text(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl")),
        name="qwen2_vl",
        title="Qwen2-VL, Qwen2.5-VL",
    ),
    wrapped(
        qwen3.FAMILY,
        ("qwen3_vl",),
        (INNER,),
        VISUAL,
        Text(("qwen3_vl_text",)),
        name="qwen3_vl",
        title="Qwen3-VL (dense)",
    ),
    wrapped(
        _QWEN3_VL_MOE,
        ("qwen3_vl_moe",),
        (INNER,),
        VISUAL,
        Text(("qwen3_vl_moe_text",)),
        name="qwen3_vl_moe",
        title="Qwen3-VL MoE (30B-A3B, 235B-A22B)",
    ),
    wrapped(
        glm4.FAMILY,
        ("glm4v", "glm46v"),
        (INNER,),
        VISUAL,
        Text(("glm4v_text",), (("attention_bias", True),)),
        name="glm4v",
        title="GLM-4.1V, 4.6V-Flash",
    ),
    wrapped(
        glm4_moe.FAMILY,
        ("glm4v_moe",),
        (INNER,),
        VISUAL,
        Text(("glm4v_moe_text",), (("use_qk_norm", False),)),
        name="glm4v_moe",
        title="GLM-4.5V, 4.6V",
    ),
    wrapped(
        deepseek_v3.FAMILY,
        ("kimi_vl", "kimi_k25"),
        (OUTER,),
        (("vision_tower",), ("mm_projector",), ("multi_modal_projector",)),
        Text(("deepseek_v3", "kimi_k2")),
        name="kimi_vl",
        title="Kimi-VL, Kimi-K2.5, K2.6",
    ),
    wrapped(
        step3p5.FAMILY,
        ("step3p7",),
        (TEXT,),
        (("vision_model",), ("vit_large_projector",)),
        Text(("step3p5",)),
        name="step3p7",
        title="Step-3.7-Flash",
    ),
)
