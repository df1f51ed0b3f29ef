"""How many MTP layers a conversion writes: the keys and the config must agree, or the user says."""

from __future__ import annotations

from ..errors import CkptError, error
from ..model import Model
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
                actual=f"{model.mtp} found in the keys{_absent(model, int(wanted))}",
                fix=f"--mtp {model.mtp}, or --mtp drop"
                if model.mtp
                else "--mtp drop, or a checkpoint that holds the layers",
            )
        return model.mtp
    witnesses = {"the keys": model.mtp, f"the config ({model.config_path.name})": model.declared}
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
            actual=", ".join(f"{who}: {count}" for who, count in witnesses.items()),
            fix=(
                f"--mtp {model.mtp} converts what is there, --mtp drop leaves it out"
                if model.mtp
                else "put the head back into the checkpoint, or --mtp drop to convert without one (the config will say 0)"
            ),
        )
    return model.mtp


def _absent(model: Model, wanted: int) -> str:
    """The names that `wanted` layers would need and the checkpoint lacks."""
    from ..mapping.rules import hf_shapes
    from ..report import listed

    if not model.family.mtp_field:
        return f"; {model.family.name} has no MTP layers"
    lacking = hf_shapes(model.table_with(wanted)).keys() - hf_shapes(model.table_with(model.mtp)).keys()
    return f"; absent: {listed(sorted(lacking))}" if lacking else ""
