"""Config keys that the server stops at, misreads or never reads."""

from __future__ import annotations

from ...errors import Finding
from ..formats.base import AUX_IDS, EAGLE_CONFIG, NUM_AUX, TARGET_HIDDEN, eagle_config
from ..servers import SEVERAL_LAYERS, VLLM, class_of, vllm_features
from ..spec import EAGLE3, MTP, DraftSpec
from .pair import Pair

KEYS = "config keys"
EXPORT = "export-draft writes it for the server"


def check_keys(pair: Pair) -> None:
    """Config keys that the server stops at, misreads or never reads."""
    before = len(pair.report.findings)
    for finding in _key_problems(pair) if pair.sglang else _vllm_key_problems(pair):
        pair.found(KEYS, finding)
    if len(pair.report.findings) == before:
        pair.passed(KEYS, "what the class reads", "there")


def _key_problems(pair: Pair) -> list[Finding]:
    spec, config = pair.spec, pair.spec.config
    known, where, found = class_of(spec), str(pair.spec.config_path), []
    found += [
        Finding(
            "config-key-missing",
            f"config.json has no {key}, which the class reads without a default",
            where,
            key,
            "absent",
            EXPORT,
        )
        for key in (known.keys if known else ())
        if key not in config
    ]
    if spec.kind == EAGLE3:
        found += _eagle3_problems(spec, where)
    if spec.kind == MTP and spec.mtp_layers > 1 and known and known.name not in SEVERAL_LAYERS:
        found.append(
            Finding(
                "mtp-layers-several",
                f"{known.name} holds one MTP layer",
                where,
                "1 MTP layer",
                str(spec.mtp_layers),
                "choose one layer when the head is extracted",
            )
        )
    return found


def _eagle3_problems(spec: DraftSpec, where: str) -> list[Finding]:
    config, found = spec.config, []
    if TARGET_HIDDEN in config and config[TARGET_HIDDEN] is None:
        found.append(
            Finding(
                "config-key-null",
                f"{TARGET_HIDDEN} is null, which the class multiplies",
                where,
                f"{spec.target_hidden_size}, or no such key",
                "null",
                EXPORT,
            )
        )
    if AUX_IDS in config and AUX_IDS not in eagle_config(config):
        found.append(
            Finding(
                "aux-ids-not-read",
                f"{AUX_IDS} stands at the top level, where SGLang does not look for it",
                where,
                f"{EAGLE_CONFIG}.{AUX_IDS}",
                f"{AUX_IDS}: {config[AUX_IDS]}",
                EXPORT,
            )
        )
    unknown = (
        (spec.norms.before_residual, "norm_before_residual"),
        (spec.qk_norm, "q and k norms"),
        (spec.qkv_bias, "biases of q, k and v"),
        (not spec.norms.before_head, "an lm_head without a norm before it"),
    )
    found += [
        Finding(
            "server-cannot-express",
            f"the class has no {what}: it would load the head and compute something else",
            where,
            f"a head without {what}",
            what,
            "serve it with what it was trained for",
        )
        for present, what in unknown
        if present
    ]
    return found


def _vllm_key_problems(pair: Pair) -> list[Finding]:
    """vLLM reads aux ids at the top level only and takes each for the INPUT of that layer; without them, the default."""
    spec, found = pair.spec, list[Finding]()
    if spec.kind == MTP and spec.mtp_layers > 1 and spec.family is not None and spec.family.draft_class == "MiMoV2MTP":
        found.append(
            Finding(
                "mtp-layers-several",
                "vLLM runs the first of MiMo-V2's MTP layers only",
                str(spec.config_path),
                "1 MTP layer",
                str(spec.mtp_layers),
                "nothing to do; the others are left out",
                "warning",
            )
        )
    if spec.kind != EAGLE3:
        return found
    if class_of(spec, VLLM) and (features := vllm_features(spec)) != spec.aux_count:
        found.append(
            Finding(
                "fc-features",
                f"vLLM makes fc for {features} states of the target",
                str(spec.config_path),
                f"{NUM_AUX}: {spec.aux_count}, where the class reads it",
                f"{features}",
                "export-draft --format speculators writes it so",
            )
        )
    stated = spec.config.get(AUX_IDS)
    taken = tuple(stated) if isinstance(stated, list) else pair.target.default_aux
    wanted = spec.aux if spec.aux is not None else pair.target.default_aux
    if taken != wanted:
        found.append(
            Finding(
                "aux-ids-not-read",
                f"vLLM reads {AUX_IDS} at the top level, as inputs of layers, and would take other layers",
                str(spec.config_path),
                f"{AUX_IDS}: {list(wanted)} at the top level",
                f"features before layers {list(taken)}",
                "export-draft --format speculators writes them so",
                "warning",
            )
        )
    if not spec.norms.before_head:
        found.append(
            Finding(
                "server-cannot-express",
                "the class normalises before the lm_head, always: it would load the head and compute something else",
                str(spec.config_path),
                "a head with a norm before its lm_head",
                "none",
                "serve it with what it was trained for",
            )
        )
    return found
