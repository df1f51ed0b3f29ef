"""What goes beside the weights: the edited config, the sidecars, the manifest of a carried copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import __version__
from ..families.base import HF as HF_SIDE
from ..families.edits import dtype_edits, edited_config, mtp_edits, quantisation_removals
from ..model import HF_COPY, Model
from ..reference import BLOCK_SCALE
from ..stores.checksums import CHECKSUMS, checksums, files_below
from ..stores.dtypes import BY_NAME
from ..stores.hf_folder import CONFIG
from ..stores.sidecars import JOURNAL, MANIFEST, copy_sidecars
from ..stores.torch_dist.reader import TorchDist
from .companions import Companions
from .options import Options
from .plan import Plan


def finish(
    model: Model, plan: Plan, options: Options, root: Path, duplicates: set[str], companions: Companions
) -> None:
    """Write config and companions at `root` of a Hugging Face folder, in `hf/` of a torch-dist iteration."""
    to_hf = isinstance(model.store, TorchDist)
    folder = root if to_hf else root / HF_COPY
    folder.mkdir(exist_ok=True)
    edits = config_edits(model, plan, options, to_hf)
    (folder / CONFIG).write_bytes(edited_config(model.config_path.read_bytes(), edits))
    copy_sidecars(companions.folder, folder, companions.files)
    manifest = {"written_by": f"ckpt-tools {__version__}"} | ({} if to_hf else _manifest(model, plan, duplicates))
    if options.checksums:
        manifest[CHECKSUMS] = checksums(root, files_below(root, folder / MANIFEST, but=JOURNAL))
    if options.checksums or not to_hf:
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def config_edits(model: Model, plan: Plan, options: Options, to_hf: bool) -> dict[tuple[str, ...], Any]:
    """What of config.json has to change: the MTP count, the dtype asked for, a quantisation that the weights lost."""
    edits: dict[tuple[str, ...], Any] = {}
    if model.family.undeclared_mtp and not model.declared:
        edits |= {} if plan.mtp == model.mtp else {(model.family.mtp_field,): plan.mtp}
    elif plan.mtp != model.declared:
        edits |= mtp_edits(model.config, plan.mtp, model.family.mtp_field)
    if options.dtype:
        edits |= dtype_edits(model.config, BY_NAME[options.dtype].torch)
    if to_hf and not options.quantize:
        edits |= quantisation_removals(model.config)
    return edits


def _manifest(model: Model, plan: Plan, duplicates: set[str]) -> dict[str, Any]:
    """What the bytes of torch-dist do not say about the original."""
    return {
        "family": model.family.name,
        "stored_duplicates": sorted(duplicates),
        "variants": {
            v.kind: model.chosen[v.kind] for v in model.family.variants if v.side == HF_SIDE or not v.marks(model.dims)
        },
        "dtypes": plan.dtypes,
        "quantised": sorted(name for name in model.scales if name + BLOCK_SCALE in model.store.tensors),
    }
