"""Writing heads for SGLang 0.5.23: its class names, its config fields, what it cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CkptError
from ...families.edits import edited_config, quantisation_removals
from ...quantised import FLOAT8, quantisation
from ...report import Report
from ...stores.sidecars import sidecars
from ..servers import SEVERAL_LAYERS
from ..spec import D2T, EAGLE, EAGLE3, EMBED, FC, FC_BIAS, HEAD, DraftSpec, HeadTensor
from . import base
from .eagle_names import LAYER_NORM, MIDLAYER, QK_NORM, at_layer
from .layer import dumped, written_layer
from .maps import made_maps
from .parts import zeros
from .targets import Target, count_edits
from .writing import Written

FORM = "sglang"
LLAMA_EAGLE, QWEN2_EAGLE = "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"
LLAMA_EAGLE3, LATENT_EAGLE3 = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
FOREIGN = (
    "auto_map",
    base.SPECULATORS_CONFIG,
    base.SPECULATORS_TYPE,
    "speculators_version",
    base.LAYER_CONFIG,
)
RESTATED = (base.NORM_OUTPUT, base.BEFORE_RESIDUAL, base.BEFORE_FC, base.FC_NORM, base.USE_AUX_NORM, base.AUX_IDS)


def write_eagle(spec: DraftSpec, target: Target, report: Report) -> Written:
    """Raises CkptError with everything that SGLang's classes cannot express."""
    refusals = Report()
    _refuse(spec, target, refusals)
    refusals.raise_errors(CkptError)
    tensors = _tensors(spec, report)
    config = _config(spec, target, report)
    made = made_maps(spec, mask_needed=bool(spec.ids)) if spec.ids or D2T in spec.tensors else {}
    kept = {name: entry for name, entry in tensors.items() if name not in made}
    return Written(FORM, eagle_architecture(spec), dumped(config), kept, made)


def eagle_architecture(spec: DraftSpec) -> str:
    if spec.kind == EAGLE:
        return QWEN2_EAGLE if spec.qkv_bias else LLAMA_EAGLE
    return LATENT_EAGLE3 if spec.mla else LLAMA_EAGLE3


def _refuse(spec: DraftSpec, target: Target, report: Report) -> None:
    """The class would load such a head without complaint and compute something else."""
    norms, latent = spec.norms, spec.mla is not None
    reasons = (
        (norms.before_residual, base.BEFORE_RESIDUAL, "the residual is taken before the norm, always"),
        (spec.qk_norm, QK_NORM[0], "its attention has no q and k norms"),
        (spec.kind == EAGLE3 and spec.qkv_bias, "qkv bias", "its attention has no biases"),
        (not norms.before_head, f"{base.NORM_OUTPUT} false", "the final norm always stands before the lm_head"),
        (latent and spec.num_layers > 1, "several layers", "the class has one layer"),
        (latent and norms.before_fc, base.BEFORE_FC, "the class has no norm before fc"),
        (spec.kind == EAGLE and latent, "latent attention", "there is no such EAGLE-1 class"),
    )
    for present, what, reason in reasons:
        if present:
            report.error(
                "format-cannot-express",
                f"SGLang's {eagle_architecture(spec)} cannot express {what}",
                where=str(spec.source),
                expected=reason,
                actual=what,
                fix="serve the head with what it was trained for, or train it without",
            )
    for boundary in spec.aux or ():
        if not 1 <= boundary < target.num_layers:
            report.error(
                "aux-range",
                f"SGLang cannot take boundary {boundary} of {target.num_layers} layers",
                where=str(spec.config_path),
                expected=f"outputs of layers 0 to {target.num_layers - 2}",
                actual=f"the {'embedding' if boundary < 1 else 'final hidden state'} or beyond",
                fix="train the head on inner layers",
            )


def _tensors(spec: DraftSpec, report: Report) -> dict[str, HeadTensor]:
    found = dict(spec.tensors)
    for name in _unread(spec):
        if name in found:
            del found[name]
            report.note(
                "server-takes-targets" if name in (EMBED, HEAD) else "never-read",
                f"{name} is left out: SGLang never reads it from the head",
                where=str(spec.source),
            )
    if spec.kind == EAGLE and FC_BIAS not in found:
        found[FC_BIAS] = zeros(FC_BIAS, spec.tensors[FC].dtype, (spec.hidden_size,))
        report.note("fc-bias-zeros", "fc.bias of zeros is added: SGLang's class has one and would leave it unset")
    return {_name(spec, name): entry for name, entry in found.items()}


def _unread(spec: DraftSpec) -> tuple[str, ...]:
    """Tensors that are replaced by the target's whatever the head stores."""
    if spec.kind == EAGLE:
        return (EMBED, HEAD, at_layer(0, LAYER_NORM))
    own_embedding = spec.hidden_size != spec.target_hidden_size
    return (() if own_embedding else (EMBED,)) + ((HEAD,) if spec.borrows_head else ())


def _name(spec: DraftSpec, name: str) -> str:
    """An only EAGLE-3 layer is called `midlayer`, as SafeAILab, SpecForge and AngelSlim call it."""
    first = at_layer(0, "")
    if spec.kind == EAGLE3 and spec.num_layers == 1 and not spec.mla and name.startswith(first):
        return MIDLAYER + name.removeprefix(first)
    return name


def _config(spec: DraftSpec, target: Target, report: Report) -> dict[str, Any]:
    config = written_layer(spec, (*FOREIGN, *RESTATED))
    config |= {
        "architectures": [eagle_architecture(spec)],
        "model_type": _model_type(spec, config),
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": _positions(spec, target, report),
        "tie_word_embeddings": spec.tied,
    }
    if not spec.mla:
        config["head_dim"] = spec.head_dim
    if spec.kind == EAGLE3:
        _eagle3_fields(spec, config)
    return config


def _model_type(spec: DraftSpec, config: Mapping[str, Any]) -> Any:
    """The config class that SGLang reads the file with; the body is a Llama layer whatever the target is."""
    if spec.mla or config.get("model_type") == "llama4_text":
        return config.get("model_type")
    return "qwen2" if spec.kind == EAGLE and spec.qkv_bias else "llama"


def _positions(spec: DraftSpec, target: Target, report: Report) -> int:
    """SGLang refuses a head that is shorter than its target, and trainers write their training length."""
    own = spec.max_position_embeddings or 0
    if own < target.max_position_embeddings:
        report.warn(
            "draft-context-short",
            "max_position_embeddings is raised to the target's; SGLang refuses a shorter head",
            where=str(spec.config_path),
            expected=f"at least {target.max_position_embeddings}",
            actual=str(spec.max_position_embeddings),
            fix="nothing to do; the head was trained on shorter texts and may accept less beyond that",
        )
    return max(own, target.max_position_embeddings)


def _eagle3_fields(spec: DraftSpec, config: dict[str, Any]) -> None:
    """`draft_vocab_size` must be there; `target_hidden_size` must not be null; ids name outputs, in `eagle_config`.

    `norm_output` is written only where it is true: absent, it means the same to SGLang and to SpecForge.
    """
    config[base.DRAFT_VOCAB] = None if spec.borrows_head else spec.draft_vocab_size
    config.pop(base.TARGET_HIDDEN, None)
    if spec.hidden_size != spec.target_hidden_size:
        config[base.TARGET_HIDDEN] = spec.target_hidden_size
    nested = dict(base.eagle_config(spec.config))
    nested.pop(base.BEFORE_FC, None)
    if spec.aux is not None:
        nested |= {base.AUX_IDS: [boundary - 1 for boundary in spec.aux], base.USE_AUX: True}
    if nested:
        config[base.EAGLE_CONFIG] = nested
    norms = {base.BEFORE_FC: spec.norms.before_fc, base.FC_NORM: spec.norms.fc, base.NORM_OUTPUT: spec.norms.output}
    config |= {name: True for name, value in norms.items() if value}
    if FC_BIAS in spec.tensors or "bias" in config:
        config["bias"] = FC_BIAS in spec.tensors


def write_mtp(spec: DraftSpec, target: Target, report: Report) -> Written:
    """A folder of its own: SGLang turns the target's architecture into its MTP class and reads the target's dimensions."""
    assert spec.family is not None
    if spec.mtp_layers > 1 and spec.family.draft_class not in SEVERAL_LAYERS:
        problem = Report()
        problem.error(
            "mtp-layers-several",
            f"SGLang's {spec.family.draft_class} holds one MTP layer and the head has {spec.mtp_layers}",
            where=str(spec.source),
            expected="1 MTP layer",
            actual=str(spec.mtp_layers),
            fix="keep the first layer only, as a checkpoint with one MTP layer",
        )
        problem.raise_errors()
    edits = count_edits(spec, target)
    if quantisation(target.config) and not is_quantised(spec):
        edits |= quantisation_removals(target.config)
        report.note("quantisation-removed", "the target is quantised and the head is not; the head's config says so")
    code = tuple(target.root / path for path in sidecars(target.root) if path.suffix == ".py")
    config = edited_config(target.config_path.read_bytes(), edits)
    return Written(FORM, target.architecture, config, spec.tensors, code=code)


def is_quantised(spec: DraftSpec) -> bool:
    return any(entry.dtype in FLOAT8 for entry in spec.tensors.values())
