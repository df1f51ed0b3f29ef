"""The supported families: data over dimensions, one small file each."""

from __future__ import annotations

from ..errors import CkptError, error
from . import (
    bailing_moe,
    deepseek_v3,
    ernie4_5_moe,
    glm4,
    glm4_moe,
    gpt_oss,
    llama,
    mimo,
    mimo_v2,
    minimax_m2,
    multimodal,
    nemotron_h,
    qwen2,
    qwen3,
    qwen3_moe,
    qwen3_next,
    step3p5,
)
from .base import Family
from .config import Fields

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    qwen3_next.FAMILY,
    qwen3_next.DENSE,
    qwen3_next.MOE,
    deepseek_v3.FAMILY,
    deepseek_v3.V32,
    deepseek_v3.KIMI,
    glm4.FAMILY,
    glm4_moe.FAMILY,
    deepseek_v3.LITE,
    deepseek_v3.GLM5,
    mimo.FAMILY,
    mimo_v2.FAMILY,
    minimax_m2.FAMILY,
    ernie4_5_moe.FAMILY,
    gpt_oss.FAMILY,
    bailing_moe.FAMILY,
    step3p5.FAMILY,
    nemotron_h.FAMILY,
    *multimodal.FAMILIES,
)


def family_of(fields: Fields) -> Family:
    """The family of a config, by its `model_type`; raises CkptError with the list of supported ones."""
    model_type = fields.model_type()
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    raise error(
        CkptError,
        "family-unsupported",
        f"no mapping for model_type {model_type!r}",
        where=fields.where,
        expected=", ".join(sorted(name for family in FAMILIES for name in family.model_types)),
        actual=str(model_type),
        fix="see `ckpt-tools families` for what converts; a new family is one small file in ckpt_tools/families",
    )
