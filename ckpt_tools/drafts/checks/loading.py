"""Will the server's class load it? Architecture string, config keys, names that it reads and names that it drops."""

from __future__ import annotations

from difflib import get_close_matches

from ...errors import Finding
from ...report import listed
from ..formats.base import AUX_IDS, EAGLE_CONFIG, NUM_AUX, TARGET_HIDDEN, eagle_config
from ..formats.eagle_names import expected_shapes
from ..formats.native import MEGATRON
from ..servers import (
    SEVERAL_LAYERS,
    VLLM,
    ServerClass,
    architectures,
    class_of,
    every_architecture,
    reads,
    vllm_features,
)
from ..spec import EAGLE, EAGLE3, EMBED, HEAD, MTP, T2D, DraftSpec
from .pair import Pair
from .tables import THE_TARGETS, served

ARCHITECTURE, ALGORITHM, NAMES, KEYS = "architecture", "algorithm", "tensors read", "config keys"
EXPORT = "export-draft writes it for the server"
ALGORITHMS = {MTP: ("nextn", "eagle"), EAGLE: ("eagle",), EAGLE3: ("eagle3",)}


def check_algorithm(pair: Pair) -> None:
    """F2: which generation the head is, against what its config or the user says."""
    spec = pair.spec
    claimed = next((kind for kind in (EAGLE3, EAGLE) if spec.kind != MTP and spec.architecture in _own(kind)), "")
    asked = pair.rules.algorithm
    fits = asked in ("", *ALGORITHMS[spec.kind]) and claimed in ("", spec.kind)
    if fits:
        pair.passed(ALGORITHM, asked or ALGORITHMS[spec.kind][0], spec.kind)
        return
    looks = {
        EAGLE: "looks like EAGLE-1/2: fc takes 2 x the hidden size; EAGLE-3 takes k x (k >= 3 aux layers)",
        EAGLE3: "looks like EAGLE-3: its layer has a second input norm and takes the features of several layers",
        MTP: "holds MTP layers, which run as nextn",
    }[spec.kind]
    pair.found(
        ALGORITHM,
        Finding(
            "algorithm",
            f"the head {looks}",
            where=str(spec.config_path),
            expected=f"algorithm {ALGORITHMS[spec.kind][0]}",
            actual=asked if asked not in ("", *ALGORITHMS[spec.kind]) else f"architectures: {spec.architecture}",
            fix=f"start the server with {ALGORITHMS[spec.kind][0].upper()}; {EXPORT}",
        ),
    )


def _own(kind: str) -> tuple[str, ...]:
    """Class names that say which generation a head is of."""
    return {
        EAGLE: ("LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "EagleLlamaForCausalLM"),
        EAGLE3: ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM", "Eagle3LlamaForCausalLM"),
    }[kind]


def check_architecture(pair: Pair) -> None:
    """F4: one string, which the server knows and which leads to the class for this head."""
    spec = pair.spec
    named = spec.config.get("architectures")
    wanted = (pair.target.architecture,) if spec.kind == MTP else architectures(pair.rules.server, spec)
    known = spec.kind != MTP or not pair.sglang or spec.architecture in architectures(pair.rules.server, spec)
    known_class = class_of(spec, pair.rules.server)
    loaded = known and (spec.kind == MTP or known_class is not None)
    if named == [spec.architecture] and spec.architecture in wanted and loaded:
        pair.passed(ARCHITECTURE, wanted[0], known_class.name if known_class else spec.architecture)
        return
    near = get_close_matches(spec.architecture, every_architecture(pair.rules.server), n=3, cutoff=0.6)
    several = isinstance(named, list) and len(named) > 1
    pair.found(
        ARCHITECTURE,
        Finding(
            "architecture",
            "config.json names several architectures"
            if several
            else f"{pair.rules.server} does not load this head by its architecture string",
            where=str(spec.config_path),
            expected=f'["{wanted[0]}"]' if known else f"one of {listed(architectures(pair.rules.server, spec))}",
            actual=str(named),
            fix=EXPORT + (f"; near: {', '.join(near)}" if near else ""),
        ),
    )


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


def check_names(pair: Pair) -> None:
    """Every tensor that the class needs must reach it, and every tensor of the head must be read."""
    spec = pair.spec
    if spec.form == MEGATRON:
        pair.found(
            NAMES,
            Finding(
                "not-servable",
                "this is a Megatron checkpoint; no server loads it",
                str(spec.source),
                "a Hugging Face folder",
                "torch-dist",
                EXPORT,
            ),
        )
        return
    known = class_of(spec, pair.rules.server)
    if known is None:
        pair.skipped(NAMES, "no class")
        return
    unread = [
        entry.source
        for name, entry in spec.tensors.items()
        if name not in known.ignored and not reads(known, name, entry.source)
    ]
    unset = _unset(pair, known)
    if unread:
        pair.found(
            NAMES,
            Finding(
                "tensors-never-loaded",
                f"{known.name} has no place for {len(unread)} of {len(spec.tensors)} tensors and stops at them"
                if known.stops
                else f"{known.name} drops {len(unread)} of {len(spec.tensors)} tensors without a word",
                str(spec.source),
                "names that the class reads",
                listed(unread),
                EXPORT,
            ),
        )
    if unset:
        pair.found(
            NAMES,
            Finding(
                "tensors-never-set",
                f"{len(unset)} tensors of {known.name} would stay as allocated",
                str(spec.source),
                listed(unset),
                "no tensor that the class reads",
                EXPORT,
            ),
        )
    if dropped := [
        entry.source for name, entry in spec.tensors.items() if name in known.ignored and name not in (HEAD, T2D)
    ]:
        pair.report.note("never-read", f"{known.name} does not read {listed(dropped)}", where=str(spec.source))
    if not unread and not unset:
        pair.passed(NAMES, f"every tensor of {known.name}", f"{len(spec.tensors)} tensors")


def _unset(pair: Pair, known: ServerClass) -> list[str]:
    spec = pair.spec
    if spec.kind == MTP:
        return []  # the table of the family was checked when the head was opened
    supplied = {name for name in (EMBED, HEAD) if served(pair, name) == THE_TARGETS}
    needed = {*expected_shapes(spec)[0], *known.required} - supplied - {*known.ignored, *known.absent}
    reached = {name for name, entry in spec.tensors.items() if reads(known, name, entry.source)}
    return sorted(needed - reached)
