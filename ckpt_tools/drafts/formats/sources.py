"""The formats that EAGLE heads come in, each by its own marks; the first that recognises a head reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...report import Report
from ..spec import Norms, first_architecture
from .base import (
    AUX_IDS,
    LAYER_CONFIG,
    NORM_OUTPUT,
    SPECULATORS_TYPE,
    Flat,
    Format,
    eagle_config,
    flags,
    nested,
    numbers,
    outputs_of,
    verifier_of,
)
from .containers import Container

ANGELSLIM = ("Eagle3LlamaForCausalLM", "CosyVoice3Eagle3LlamaForCausalLM")
SGLANG = (
    "LlamaForCausalLMEagle",
    "Qwen2ForCausalLMEagle",
    "LlamaForCausalLMEagle3",
    "Eagle3DeepseekV2ForCausalLM",
)
# Fields of ModelOpt's EAGLE configuration that no other producer writes (modelopt/torch/export/plugins/hf_spec_export.py).
MODELOPT = (
    "eagle_architecture_config",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
)


def _plain(container: Container, report: Report) -> Flat:
    """Everything in one flat config, ids that name outputs."""
    config = container.config
    return Flat(config, config, outputs_of(container, report), flags(config, container, report))


def _safeailab(container: Container, report: Report) -> Flat:
    """EAGLE itself: features before layers 2, L//2, L-3 (the server's default), no norm beyond the layer's."""
    return Flat(container.config, container.config, None, Norms())


def _specforge(container: Container, report: Report) -> Flat:
    """SpecForge feeds the raw state whatever `norm_output` says; the field puts the norm before the lm_head, true if absent."""
    flat = _plain(container, report)
    before_head = container.config.get(NORM_OUTPUT) is not False
    return replace(flat, norms=replace(flat.norms, output=False, before_head=before_head))


def _sglang(container: Container, report: Report) -> Flat:
    """Read as the server reads it; a `norm_output` that SpecForge wrote means something else, and nothing tells."""
    flat = _plain(container, report)
    if container.config.get(NORM_OUTPUT) is not None:
        stated = "true" if flat.norms.output else "false"
        report.warn(
            "norm-output-unclear",
            f"norm_output {stated}: to SGLang whether the next step is fed the normed state, to SpecForge whether a norm"
            " stands before the lm_head",
            where=str(container.config_path),
            expected="the meaning that the head was trained with",
            actual="read as SGLang reads it",
            fix="--from specforge if SpecForge trained it",
        )
    return flat


def _speculators(container: Container, report: Report) -> Flat:
    """Ids are indices of hidden_states, that is boundaries; the only format that names its target."""
    config = container.config
    return Flat(
        nested(config, LAYER_CONFIG),
        config,
        numbers(config.get(AUX_IDS), container, report),
        flags(config, container, report),
        verifier_of(config),
    )


def _is_speculators(container: Container) -> bool:
    return container.config.get(SPECULATORS_TYPE) == "eagle3"


def _is_modelopt(container: Container) -> bool:
    config: Mapping[str, Any] = container.config
    nested = eagle_config(config)
    return any(name in nested or name in config for name in MODELOPT)


FORMATS: tuple[Format, ...] = (
    Format("speculators", _is_speculators, _speculators),
    Format("specforge", lambda container: bool(container.strategy), _specforge),
    Format("modelopt", _is_modelopt, _plain),
    Format("angelslim", lambda container: first_architecture(container.config) in ANGELSLIM, _plain),
    Format("sglang", lambda container: first_architecture(container.config) in SGLANG, _sglang),
    Format("safeailab", lambda container: True, _safeailab),
)
NAMES = tuple(form.name for form in FORMATS)
