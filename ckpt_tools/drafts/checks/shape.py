"""Sizes: does the head take what this target gives, and which of its layers does it listen to?"""

from __future__ import annotations

from pathlib import Path

from ...errors import CkptError, Finding, error
from ...report import listed
from ...stores.hf_folder import is_hf_folder, open_folder
from ..formats.base import AUX_IDS, EAGLE_CONFIG
from ..formats.targets import Target
from ..identity import Identity, arch_fields, arch_hash, arch_mismatches
from ..spec import EAGLE3, MTP
from .pair import Pair

HIDDEN, AUX, MTP_INDEX = "hidden size", "aux layers", "MTP layer index"
NOT_A_HEAD, MOST_LAYERS = "not-a-draft-head", 1024
# The server replaces or ignores these, or another check looks at them.
ELSEWHERE = ("hidden_size", "vocab_size", "tied", "num_hidden_layers")


def check_hidden(pair: Pair) -> None:
    """L8: said in inputs of the joint projection, as a server's crash would."""
    spec, wanted = pair.spec, pair.target.hidden_size
    actual, count = spec.target_hidden_size, spec.aux_count if spec.kind == EAGLE3 else 2
    if actual == wanted:
        pair.passed(HIDDEN, wanted, actual)
        return
    pair.found(
        HIDDEN,
        Finding(
            "hidden-size",
            f"the head was made for a hidden size of {actual}, the target's is {wanted}",
            where=str(spec.config_path),
            expected=f"{count * wanted} inputs ({count}x{wanted})",
            actual=f"{count * actual} inputs ({count}x{actual})",
            fix="name the target that the head was trained for",
        ),
    )


def check_heads(pair: Pair) -> None:
    heads, groups = pair.spec.num_attention_heads, pair.spec.num_key_value_heads
    if heads % groups == 0:
        pair.passed("attention heads", "a multiple of the key-value heads", f"{heads} and {groups}")
        return
    pair.found(
        "attention heads",
        Finding(
            "heads-not-divisible",
            f"{groups} key-value heads do not divide {heads} attention heads",
            where=str(pair.spec.config_path),
            expected="num_attention_heads a multiple of num_key_value_heads",
            actual=f"{heads} and {groups}",
            fix="correct the head's config.json",
        ),
    )


def check_aux(pair: Pair) -> None:
    """Boundary k is the input of layer k; the server's default is (2, L//2, L-3) of L layers."""
    spec, layers = pair.spec, pair.target.num_layers
    if spec.kind != EAGLE3:
        return
    taken = spec.aux if spec.aux is not None else pair.target.default_aux
    last = layers - 1 if pair.sglang else layers
    first = 1 if pair.sglang else 0
    if outside := [boundary for boundary in taken if not first <= boundary <= last]:
        _aux_range(pair, taken, outside, first, last)
    elif list(taken) != sorted(set(taken)):
        pair.found(
            AUX,
            Finding(
                "aux-order",
                "aux layers are not ascending: servers join features in the order of the layers",
                where=str(spec.config_path),
                expected=str(sorted(set(taken))),
                actual=str(list(taken)),
                fix="permute the column blocks of fc.weight and list the layers in ascending order",
            ),
        )
    else:
        _aux_convention(pair, taken)


def _aux_range(pair: Pair, taken: tuple[int, ...], outside: list[int], first: int, last: int) -> None:
    layers = pair.target.num_layers
    final = outside == [layers]
    pair.found(
        AUX,
        Finding(
            "aux-range",
            f"boundary {outside[0]} of {layers} layers "
            + ("is the state before the final norm, which SGLang never captures" if final else "does not exist"),
            where=str(pair.spec.config_path),
            expected=f"boundaries {first} to {last}"
            + (f" ({EAGLE_CONFIG}.{AUX_IDS} 0 to {last - 1})" if pair.sglang else ""),
            actual=f"boundaries {list(taken)}" + (" (the default)" if pair.spec.aux is None else ""),
            fix="train the head on inner layers" if final else "the head belongs to a deeper target",
        ),
    )


def _aux_convention(pair: Pair, taken: tuple[int, ...]) -> None:
    default, layers = pair.target.default_aux, pair.target.num_layers
    near = len(taken) == len(default) and all(abs(a - b) <= 1 for a, b in zip(taken, default, strict=True))
    if taken != default and near:
        pair.found(
            AUX,
            Finding(
                "aux-convention-unclear",
                "the aux layers lie beside the usual three: ids may have been written in the other convention",
                where=str(pair.spec.config_path),
                expected=f"boundaries {list(default)} (as {AUX_IDS}: {[boundary - 1 for boundary in default]})",
                actual=f"boundaries {list(taken)} (as {AUX_IDS}: {[boundary - 1 for boundary in taken]})",
                fix="ids name the layer whose OUTPUT is taken; compare with what the trainer captured",
                severity="warning",
            ),
        )
        return
    final = " (the last before the final norm)" if layers in taken else ""
    pair.passed(AUX, f"boundaries within {layers} layers", f"boundaries {list(taken)}{final}")


def check_mtp(pair: Pair) -> None:
    """An MTP head is read with its own config.json, which therefore must be the target's in everything it decides."""
    spec, target = pair.spec, pair.target
    if spec.kind != MTP:
        return
    if spec.family is not target.family or spec.dims is None or target.dims is None or spec.family is None:
        pair.found(
            "family",
            Finding(
                "family-differs",
                "the MTP layers are of another family than the target",
                where=str(spec.config_path),
                expected=target.family.name if target.family else str(target.config.get("model_type")),
                actual=spec.family.name if spec.family else "unknown",
                fix="name the target that the head belongs to",
            ),
        )
        return
    _check_index(pair)
    own, other = (arch_fields(spec.family, dims) for dims in (spec.dims, target.dims))
    differing = arch_mismatches(Identity(other, arch_hash(other)), Identity(own, arch_hash(own)))
    for field, expected, actual in differing:
        if field not in ELSEWHERE and not field.startswith("rope."):
            pair.found(
                "dimensions",
                Finding(
                    "dims-differ",
                    f"{field} differs between the head's config and the target's",
                    where=str(spec.config_path),
                    expected=expected,
                    actual=actual,
                    fix="name the target that the head belongs to",
                ),
            )


def _check_index(pair: Pair) -> None:
    """DeepSeek and GLM number the MTP layer after the last decoder layer; SGLang loads nothing under another number."""
    spec, layers = pair.spec, pair.target.num_layers
    assert spec.dims is not None
    continued = spec.mtp_index[:1] == (spec.dims.num_hidden_layers,)
    if spec.dims.num_hidden_layers == layers:
        pair.passed(MTP_INDEX, layers if continued else "from the names", listed_index(spec.mtp_index))
        return
    pair.found(
        MTP_INDEX,
        Finding(
            "mtp-index",
            f"the head belongs behind {spec.dims.num_hidden_layers} layers and the target has {layers}",
            where=str(spec.config_path),
            expected=f"num_hidden_layers {layers}"
            + (f", MTP tensors under model.layers.{layers}" if continued else ""),
            actual=f"num_hidden_layers {spec.dims.num_hidden_layers}"
            + (f", MTP tensors under model.layers.{spec.mtp_index[0]}" if continued else ""),
            fix="export-draft writes the head for its target",
        ),
    )


def listed_index(index: tuple[int, ...]) -> str:
    return ", ".join(map(str, index)) or "not spelled"


def raise_misplaced(draft: Path, target: Target, problem: CkptError) -> None:
    """If this is no head because its MTP layer has another number than the config says: say that instead."""
    if NOT_A_HEAD not in [finding.code for finding in problem.findings] or not is_hf_folder(draft):
        return
    names = open_folder(draft).tensors
    if found := [number for number in range(MOST_LAYERS) if f"model.layers.{number}.eh_proj.weight" in names]:
        raise error(
            CkptError,
            "mtp-index",
            "SGLang looks for the MTP layer behind the decoder layers and would load nothing",
            where=str(draft),
            expected=f"MTP tensors under model.layers.{target.num_layers}, num_hidden_layers {target.num_layers}",
            actual=f"MTP tensors under {listed(f'model.layers.{number}' for number in found)}",
            fix="keep the target's config.json beside the head, or rename the layer",
        ) from problem
