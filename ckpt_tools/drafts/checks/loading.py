"""Will the server's class load it? Architecture string, names that it reads and names that it drops."""

from __future__ import annotations

from difflib import get_close_matches

from ...errors import Finding
from ...report import listed
from ..formats.eagle_names import expected_shapes
from ..formats.native import MEGATRON
from ..servers import ServerClass, architectures, class_of, every_architecture, reads
from ..spec import EAGLE, EAGLE3, EMBED, HEAD, MTP, T2D
from .keys import EXPORT
from .pair import Pair
from .tables import THE_TARGETS, served

ARCHITECTURE, ALGORITHM, NAMES = "architecture", "algorithm", "tensors read"
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
