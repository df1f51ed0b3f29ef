"""A head for a loaded target, from any format."""

from __future__ import annotations

from ..drafts.spec import EAGLE3, MTP, DraftSpec
from ..errors import CkptError, error
from ..support import SERVER_ONLY
from .eagle import EagleHead
from .head import Head
from .mtp import MtpHead
from .target import Target
from .tensors import read_head


def boundaries_of(spec: DraftSpec, layers: int) -> tuple[int, ...]:
    """The states of a target of `layers` layers that the head is fed; none means the one after the final norm."""
    if spec.kind != EAGLE3:
        return ()
    return spec.aux if spec.aux is not None else (2, layers // 2, layers - 3)


def build_head(spec: DraftSpec, target: Target) -> Head:
    """The head with its weights, sharing the target's tables, on its device and in its dtype; for inference.

    `requires_grad_(True)` makes it trainable. Raises CkptError for a head that cannot be run on this target.
    """
    _check_width(spec, target)
    _check_family(spec)
    tensors = read_head(spec, target.dtype)
    head: MtpHead | EagleHead
    if spec.kind == MTP:
        head = MtpHead(spec, target)
    else:
        boundaries = boundaries_of(spec, target.facts.num_layers)
        _check_boundaries(boundaries, target.facts.num_layers, spec)
        head = EagleHead(spec, target.tables, boundaries)
    head.load(tensors)
    return head.to(target.device, target.dtype).eval().requires_grad_(False)


def _check_width(spec: DraftSpec, target: Target) -> None:
    if spec.target_hidden_size != target.facts.hidden_size:
        raise error(
            CkptError,
            "hidden-size",
            "the head was made for another hidden size",
            where=str(spec.config_path),
            expected=str(target.facts.hidden_size),
            actual=str(spec.target_hidden_size),
            fix="name the target that the head was trained for",
        )


def _check_family(spec: DraftSpec) -> None:
    if spec.family is not None and (not spec.family.causal or spec.family.name in SERVER_ONLY):
        windowed = "layers that are fed the state before it and attend within a window"
        raise error(
            CkptError,
            "family-not-run",
            f"MTP layers of {spec.family.name} are not run here",
            where=str(spec.source),
            expected="a family whose MTP layer is transformers' decoder layer, fed the state after the final norm",
            actual=windowed if spec.family.causal else "no causal language model of transformers",
            fix="measure it in the server: `ckpt-tools smoke --server URL`",
        )


def _check_boundaries(boundaries: tuple[int, ...], layers: int, spec: DraftSpec) -> None:
    if outside := [boundary for boundary in boundaries if not 0 <= boundary < layers]:
        raise error(
            CkptError,
            "aux-range",
            f"the target of {layers} layers has no state {outside[0]} to feed",
            where=str(spec.config_path),
            expected=f"boundaries 0 to {layers - 1}",
            actual=str(list(boundaries)),
            fix="the head belongs to a deeper target",
        )
