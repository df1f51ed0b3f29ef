"""The supported families: data over dimensions, one small file each."""

from __future__ import annotations

from ..errors import CkptError, error
from . import llama, mimo, qwen2, qwen3
from .base import Family
from .config import Fields

FAMILIES: tuple[Family, ...] = (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY, mimo.FAMILY)


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
