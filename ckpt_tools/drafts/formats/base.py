"""What a format of EAGLE heads is: how it is recognised and what its config says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...families.config import Fields
from ...report import Report
from ..spec import Norms
from .containers import Container

SPECULATORS_TYPE, SPECULATORS_CONFIG, LAYER_CONFIG = (
    "speculators_model_type",
    "speculators_config",
    "transformer_layer_config",
)
EAGLE_CONFIG, AUX_IDS = "eagle_config", "eagle_aux_hidden_state_layer_ids"
DRAFT_VOCAB, TARGET_HIDDEN, NUM_AUX = "draft_vocab_size", "target_hidden_size", "num_aux_hidden_states"
NORM_OUTPUT, BEFORE_RESIDUAL, BEFORE_FC = "norm_output", "norm_before_residual", "norm_before_fc"
FC_NORM, USE_AUX_NORM, USE_AUX = "fc_norm", "use_aux_norm", "use_aux_hidden_state"


@dataclass(frozen=True, slots=True)
class Flat:
    """What a format's config says, in one shape.

    `layer` are the fields of the decoder layer (a Llama-like config), `head` those of the head itself. `aux` are
    boundaries (see DraftSpec).
    """

    layer: Mapping[str, Any]
    head: Mapping[str, Any]
    aux: tuple[int, ...] | None
    norms: Norms
    verifier: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A source format; `flatten` reads its config and gathers what is odd."""

    name: str
    recognises: Callable[[Container], bool]
    flatten: Callable[[Container, Report], Flat]


def nested(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The fields under a name of a config, or nothing."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def eagle_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested `eagle_config`, or nothing."""
    return nested(config, EAGLE_CONFIG)


def verifier_of(config: Mapping[str, Any]) -> str:
    """How a config of speculators calls its target; a name alone in older ones."""
    found = nested(config, SPECULATORS_CONFIG).get("verifier")
    return str((found.get("name_or_path") if isinstance(found, Mapping) else found) or "")


def outputs_of(container: Container, report: Report) -> tuple[int, ...] | None:
    """`eagle_aux_hidden_state_layer_ids` that name the layer whose OUTPUT is taken: boundary = id + 1.

    SGLang, SpecForge, ModelOpt and AngelSlim; SGLang reads the nested form only.
    """
    nested, top = eagle_config(container.config).get(AUX_IDS), container.config.get(AUX_IDS)
    if nested is None and top is not None:
        report.warn(
            "aux-ids-top-level",
            f"{AUX_IDS} stands at the top level, where SGLang does not read it",
            where=str(container.config_path),
            expected=f"{EAGLE_CONFIG}.{AUX_IDS}",
            actual=str(top),
            fix="export-draft writes it in the right place",
        )
    ids = numbers(top if nested is None else nested, container, report)
    return None if ids is None else tuple(number + 1 for number in ids)


def numbers(value: Any, container: Container, report: Report) -> tuple[int, ...] | None:
    """A list of ids, or None; anything else is an error."""
    if value is None:
        return None
    if isinstance(value, list) and value and all(type(number) is int for number in value):
        return tuple(value)
    Fields(container.config, str(container.config_path), report).wrong(AUX_IDS, "a list of layer numbers", value)
    return None


def flags(config: Mapping[str, Any], container: Container, report: Report) -> Norms:
    """The norm flags as SGLang and speculators read them: `norm_output` feeds the next step the normed state."""
    nested = eagle_config(config)
    norms = Norms(
        before_residual=config.get(BEFORE_RESIDUAL) is True,
        before_fc=config.get(BEFORE_FC) is True or nested.get(BEFORE_FC) is True,
        fc=config.get(FC_NORM) is True or config.get(USE_AUX_NORM) is True,
        output=config.get(NORM_OUTPUT) is True,
    )
    if norms.before_fc and norms.fc:
        report.error(
            "config-conflict",
            f"{BEFORE_FC} and {FC_NORM} exclude each other",
            where=str(container.config_path),
            expected="one of them",
            actual="both true",
            fix="the tensors tell which was trained: input_norm or fc_norm.{i}",
        )
    return norms
