"""Writing heads as speculators 0.9 keeps them: a nested layer config, `layers.{i}`, ids that index hidden_states."""

from __future__ import annotations

from typing import Any

from ...errors import CkptError
from ...report import Report
from ..spec import EAGLE3, EMBED, FC, FC_BIAS, MTP, DraftSpec, HeadTensor
from . import base, speculators_mtp
from .base import LAYER_CONFIG, SPECULATORS_CONFIG, SPECULATORS_TYPE
from .eagle import FEATURES
from .eagle_names import O_BIAS, at_layer
from .layer import dumped, written_layer
from .maps import made_maps
from .parts import zeros
from .targets import Target
from .writing import Written

FORM, VERSION = "speculators", "0.9.0"
EAGLE3_ARCHITECTURE, MTP_ARCHITECTURE = "Eagle3Speculator", "MTPDraftModel"
# speculators' own defaults for what its config must state about proposing (proposals/greedy.py).
GREEDY = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
# Fields of the head, which the layer's config does not hold.
OF_THE_HEAD = (
    "architectures",
    "auto_map",
    "bias",
    base.AUX_IDS,
    base.BEFORE_FC,
    base.BEFORE_RESIDUAL,
    base.DRAFT_VOCAB,
    base.EAGLE_CONFIG,
    base.FC_NORM,
    base.NORM_OUTPUT,
    base.NUM_AUX,
    base.TARGET_HIDDEN,
    base.USE_AUX_NORM,
)


def write(spec: DraftSpec, target: Target, report: Report) -> Written:
    """Raises CkptError with everything that speculators cannot express."""
    if not target.name:
        report.warn(
            "verifier-unnamed",
            "speculators records its target by name, and only a path is known",
            where=str(target.root),
            expected="a name that others can resolve, such as org/name",
            actual="null is written",
            fix="--target-name ORG/NAME",
        )
    if spec.kind == MTP:
        return _mtp(spec, target)
    refusals = Report()
    _refuse(spec, refusals)
    refusals.raise_errors(CkptError)
    _warn_of_embedding(spec, report)
    made = made_maps(spec, mask_needed=True)
    tensors = {name: entry for name, entry in spec.tensors.items() if name not in made}
    return Written(FORM, EAGLE3_ARCHITECTURE, dumped(_eagle3(spec, target)), tensors | _biases(spec), made)


def _biases(spec: DraftSpec) -> dict[str, HeadTensor]:
    """`attention_bias` is one field for q, k, v and o there."""
    names = [at_layer(layer, O_BIAS) for layer in range(spec.num_layers)] if spec.qkv_bias else []
    dtype = spec.tensors[FC].dtype
    return {name: zeros(name, dtype, (spec.hidden_size,)) for name in names if name not in spec.tensors}


def _warn_of_embedding(spec: DraftSpec, report: Report) -> None:
    """speculators 0.9 means to take the verifier's, and does so only where the memory happens to be NaN."""
    if EMBED not in spec.tensors:
        report.warn(
            "embedding-left-out",
            "the head has no embedding: vLLM takes the target's, speculators would go on training with an unset one",
            where=str(spec.source),
            expected=f"{EMBED}, a copy of the target's",
            actual="absent",
            fix="nothing to do for vLLM; to train on, store the target's embedding with the head",
        )


def _refuse(spec: DraftSpec, report: Report) -> None:
    reasons = (
        (spec.kind != EAGLE3, f"an {spec.kind} head", "eagle3 and mtp heads"),
        (spec.mla is not None, "latent attention", "Llama and Qwen3 layers"),
        (spec.tied, "a head tied to its embedding", "an lm_head of its own"),
        (spec.borrows_head, "the target's lm_head", "an lm_head of its own"),
        (FC_BIAS in spec.tensors, "a bias in fc", "an fc without bias"),
        (not spec.norms.before_head, f"{base.NORM_OUTPUT} false of SpecForge", "the final norm before the lm_head"),
    )
    for present, what, expected in reasons:
        if present:
            report.error(
                "format-cannot-express",
                f"speculators cannot express {what}",
                where=str(spec.source),
                expected=expected,
                actual=what,
                fix="--format sglang",
            )


def _eagle3(spec: DraftSpec, target: Target) -> dict[str, Any]:
    layer = written_layer(spec, OF_THE_HEAD)
    layer |= {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "head_dim": spec.head_dim,
        "attention_bias": spec.qkv_bias,
        "tie_word_embeddings": False,
    }
    if spec.aux_count != FEATURES:  # vLLM's class for Llama layers counts neither ids at the top level nor columns
        layer[base.NUM_AUX] = spec.aux_count
    wide = spec.target_hidden_size
    return {
        "architectures": [EAGLE3_ARCHITECTURE],
        base.AUX_IDS: None if spec.aux is None else list(spec.aux),
        base.DRAFT_VOCAB: spec.draft_vocab_size,
        base.BEFORE_FC: spec.norms.before_fc,
        base.BEFORE_RESIDUAL: spec.norms.before_residual,
        base.FC_NORM: spec.norms.fc,
        base.NORM_OUTPUT: spec.norms.output,
        base.TARGET_HIDDEN: None if wide == spec.hidden_size else wide,
        LAYER_CONFIG: layer,
        **_speculators("eagle3", target),
    }


def _speculators(kind: str, target: Target) -> dict[str, Any]:
    named = target.config.get("architectures")
    return {
        SPECULATORS_TYPE: kind,
        "speculators_version": VERSION,
        SPECULATORS_CONFIG: {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [GREEDY],
            "verifier": {"name_or_path": target.name or None, "architectures": named or []},
        },
    }


def _mtp(spec: DraftSpec, target: Target) -> Written:
    layer = target.config.get("text_config")
    config = {
        "architectures": [MTP_ARCHITECTURE],
        "num_nextn_predict_layers": 1,
        LAYER_CONFIG: dict(layer if isinstance(layer, dict) else target.config),
        **_speculators("mtp", target),
    }
    return Written(FORM, MTP_ARCHITECTURE, dumped(config), speculators_mtp.tensors_for(spec))
