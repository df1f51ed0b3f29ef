"""How many MTP layers a conversion writes: the keys and the config must agree, or the user says."""

from __future__ import annotations

from ..errors import CkptError, error
from ..mapping.rules import hf_shapes, megatron_shapes
from ..model import Model
from ..report import listed
from ..stores.torch_dist.reader import TorchDist
from .options import MTP_AUTO, MTP_DROP


def mtp_to_write(model: Model, wanted: str | int) -> int:
    """The count to write; raises CkptError if keys, config and training arguments disagree and `wanted` does not settle it."""
    if wanted == MTP_DROP or wanted == 0:
        return 0
    if wanted != MTP_AUTO:
        if wanted != model.mtp:
            raise error(
                CkptError,
                "mtp-count",
                f"--mtp {wanted} was asked for and the checkpoint holds {model.mtp}",
                where=str(model.store.root),
                expected=f"{wanted} MTP layers",
                actual=f"{model.mtp} found in the keys{_absent(model, int(wanted))}{_surplus(model, int(wanted))}",
                fix=f"--mtp {model.mtp}, or --mtp drop"
                if model.mtp
                else "--mtp drop, or a checkpoint that holds the layers",
            )
        return model.mtp
    witnesses = {"the keys": model.mtp}
    if model.declared or not model.family.undeclared_mtp:
        witnesses[f"the config ({model.config_path.name})"] = model.declared
    trained = model.store.argument("mtp_num_layers") if isinstance(model.store, TorchDist) else None
    if isinstance(trained, int):
        witnesses["the training arguments"] = trained
    if len(set(witnesses.values())) > 1:
        raise error(
            CkptError,
            "mtp-count",
            f"config and keys disagree about the MTP layers: {model.declared} declared, {model.mtp} found",
            where=str(model.store.root),
            expected="one count",
            actual=", ".join(f"{who}: {count}" for who, count in witnesses.items())
            + _absent(model, model.declared)
            + _surplus(model, model.declared),
            fix=(
                f"--mtp {model.mtp} converts what is there, --mtp drop leaves it out"
                if model.mtp
                else "put the head back into the checkpoint, or --mtp drop to convert without one (the config will say 0)"
            ),
        )
    return model.mtp


def _absent(model: Model, wanted: int) -> str:
    """The names that `wanted` layers would need and the checkpoint lacks."""
    if wanted and not model.family.mtp_field:
        return f"; {model.family.name} has no MTP layers"
    lacking = _names(model, wanted) - _names(model, model.mtp)
    return f"; absent: {listed(sorted(lacking))}" if lacking else ""


def _surplus(model: Model, wanted: int) -> str:
    """The names of the layers that are there beyond `wanted`."""
    surplus = _names(model, model.mtp) - _names(model, wanted) if wanted < model.mtp else set()
    return f"; present: {listed(sorted(surplus))}" if surplus else ""


def _names(model: Model, mtp: int) -> set[str]:
    """The stored names, as this format spells them, of the model with `mtp` MTP layers."""
    table = model.table_with(mtp)
    if model.is_hf:
        return set(hf_shapes(table))
    return {name for rule in table.rules for name in megatron_shapes(rule, model.naming.template(rule))}
