"""Tensors that releases store twice: compared on the way in, written twice again on the way out."""

from __future__ import annotations

from ..compare import TIED_HEAD, duplicate_difference, duplicate_finding
from ..errors import CkptError
from ..model import Model
from ..report import Report
from ..stores.torch_dist.reader import TorchDist
from .options import KEEP_MAIN, Options


def settle_duplicates(model: Model, options: Options, report: Report) -> set[str]:
    """The duplicates that the original stores; raises CkptError if one differs from its original.

    A differing copy inside an MTP layer may be given up with `KEEP_MAIN` (servers use the main tensors); a head that
    differs from the embedding it is said to be tied to may not. A dry run reads no tensor bytes and compares nothing.
    """
    if isinstance(model.store, TorchDist):
        return {d.hf for d in model.table.duplicates if d.hf in model.reference.names}
    where = str(model.store.root)
    if options.dry_run:
        return {name for name, _ in model.stored_duplicates()}
    for name, original in model.stored_duplicates():
        worst = duplicate_difference(model, name, original)
        if worst is None:
            report.note("tied-copy", f"{name} equals {original} and is stored once", where=where)
        elif name != TIED_HEAD and options.duplicates == KEEP_MAIN:
            report.warn(
                "copy-differs", f"{name} differs from {original} and was given up", where=where, actual=f"{worst:g}"
            )
        else:
            raise CkptError(duplicate_finding(name, original, worst, where))
    return {name for name, _ in model.stored_duplicates()}
