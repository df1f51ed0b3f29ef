"""Whether a folder holds the whole body of the model into which MTP layers are merged."""

from __future__ import annotations

from ..errors import CkptError, error
from ..families.base import HF
from ..mapping.rules import hf_shapes
from ..quantised import PACKED, quantisation
from ..reference import shape_in
from ..report import listed
from ..stores.hf_folder import HfFolder
from .formats.targets import Target

EXACT = ("fp8", "compressed-tensors")  # methods that keep the names of the weights, or put `_packed` behind them
EXPERTS = "experts"


def check_body(folder: HfFolder, target: Target) -> None:
    """Raises CkptError for a target without all tensors of its decoder, by the names in its headers."""
    if absent := _absent(folder, target):
        raise error(
            CkptError,
            "tensors-missing",
            f"{len(absent)} tensors of the target's body are missing",
            where=str(folder.root),
            expected=f"every tensor of {target.family.name if target.family else ''} but its MTP layers",
            actual=f"absent: {listed(absent)}",
            fix="incomplete download? fetch the target again; if its config belongs to another model, correct that",
        )


def _absent(folder: HfFolder, target: Target) -> list[str]:
    """Names of the family's table that no tensor stands for; a method of which only modules are known is asked for those."""
    family, dims, tensors = target.family, target.dims, folder.tensors
    assert family is not None
    assert dims is not None
    variants = family.defaults() | family.detected(HF, dims, tensors.keys(), shape_in(tensors))
    names = hf_shapes(family.table(dims, 0, dims.vocab_size, variants))
    absent = [name for name in names if name not in tensors]
    scheme = quantisation(target.config)
    if scheme is None or not absent:
        return absent
    if scheme.get("quant_method") in EXACT:
        return [name for name in absent if name + PACKED not in tensors]
    modules = {_module(name) for name in tensors}
    return [name for name in absent if _module(name) not in modules]


def _module(name: str) -> str:
    """The module of a tensor; all experts of a layer are one."""
    segments = name.split(".")[:-1]
    return ".".join(segments[: segments.index(EXPERTS)] if EXPERTS in segments else segments)
