"""Which format a head is in: from the config and the names, never from the folder's name."""

from __future__ import annotations

from pathlib import Path

from ...errors import CkptError, UsageProblem, error
from ...families import FAMILIES
from ...stores.torch_dist.reader import is_torch_dist
from ..spec import DraftSpec, first_architecture
from . import speculators_mtp
from .base import SPECULATORS_TYPE, Format
from .containers import Container, open_container
from .eagle import is_eagle, read_eagle
from .eagle_names import canonical_names
from .native import read_megatron, read_native
from .sources import FORMATS

SPECULATORS_KINDS = ("eagle3", "mtp")
# Heads that draft a block of tokens at once (SpecForge, speculators): another computation under similar names.
BLOCK_HEADS = ("DFlashDraftModel", "DSparkDraftModel", "DominoDraftModel", "PEagleDraftModel")


def read_draft(path: Path, hf_config: Path | None = None, form: str | None = None) -> DraftSpec:
    """See `spec.open_draft`; `form` overrules which producer an EAGLE head is taken to be of."""
    if is_torch_dist(path):
        trained = read_megatron(path, hf_config)
        if trained is None:
            raise not_a_head(path, "a Megatron checkpoint without MTP layers")
        return trained
    container = open_container(path, hf_config)
    names = canonical_names(container.tensors)
    kind = container.config.get(SPECULATORS_TYPE)
    named = first_architecture(container.config)
    if named in BLOCK_HEADS or (kind is not None and kind not in SPECULATORS_KINDS):
        raise _unsupported(path, " of kind ".join(filter(None, (named, kind))))
    if kind == "mtp":
        return speculators_mtp.read(container)
    if is_eagle(names):
        return read_eagle(container, _format(container, form))
    if _has_family(container) and (native := read_native(container)):
        return native
    layers = f", {names.layers} ordinary layers" if names.layers else ""
    raise not_a_head(path, f"{len(container.tensors)} tensors, no fc, no MTP layer{layers}")


def _format(container: Container, form: str | None) -> Format:
    if form is None:
        return next(known for known in FORMATS if known.recognises(container))
    chosen = [known for known in FORMATS if known.name == form]
    if not chosen:
        raise error(
            UsageProblem,
            "format-unknown",
            f"no format is called {form!r}",
            expected=", ".join(known.name for known in FORMATS),
            actual=form,
            fix="choose one of them",
        )
    return chosen[0]


def _has_family(container: Container) -> bool:
    return any(container.config.get("model_type") in family.model_types for family in FAMILIES)


def _unsupported(path: Path, actual: str) -> CkptError:
    return error(
        CkptError,
        "head-kind-unsupported",
        "this is a head of a kind that is not read",
        where=str(path),
        expected="EAGLE-1, EAGLE-2, EAGLE-3 or MTP layers",
        actual=actual,
        fix="serve it as its own tool says",
    )


def not_a_head(path: Path, actual: str) -> CkptError:
    return error(
        CkptError,
        "not-a-draft-head",
        "this is no draft head",
        where=str(path),
        expected="MTP layers, or the fc.weight and decoder layer of an EAGLE head",
        actual=actual,
        fix="name the folder of the head, not that of the target",
    )
