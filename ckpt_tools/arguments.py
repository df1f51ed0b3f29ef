"""The Megatron flags of a model, read from its config and, where there are weights, checked against their keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .convert.mtp import mtp_to_write
from .convert.options import MTP_AUTO
from .families import family_of
from .families.arguments import model_arguments
from .families.config import Fields
from .families.dims import Dims
from .families.limits import approximated, inexpressible, inexpressible_rope
from .model import describe, open_store
from .report import Outcome, Report
from .stores.hf_folder import CONFIG, HfFolder, read_json
from .stores.torch_dist.reader import is_torch_dist


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """`flags` as on a command line, one per entry; `values` by argparse destination."""

    family: str
    mtp_num_layers: int
    flags: list[str]
    values: dict[str, Any]


def megatron_arguments(path: Path, for_slime: bool = True) -> Outcome[ModelArguments]:
    """Raises CkptError if the config is incomplete, contradicts the keys, or describes what no flag states.

    `for_slime` takes slime's layer plugins where the family has one.
    """
    if path.is_file() or not (is_torch_dist(path) or any(path.glob("*.safetensors"))):
        config = path if path.is_file() else path / CONFIG
        fields = Fields(read_json(config), str(config))
        family = family_of(fields)
        dims, mtp = family.dims(fields), fields.mtp_layers()
        fields.done()
    else:
        model = describe(open_store(path))
        family, dims, config = model.family, model.dims, model.config_path
        mtp = mtp_to_write(model, MTP_AUTO) if isinstance(model.store, HfFolder) else model.mtp
    spec = family.slime_spec if for_slime else None
    report = Report()
    _refuse(dims, spec is not None, str(config), report)
    if near := approximated(dims):
        report.warn(
            "rope-approximated",
            "Megatron's arguments fix a part of this rope",
            where=str(config),
            actual="; ".join(near),
        )
    if spec and any(variant.kind in ("gdn", "dsa") for variant in family.variants):
        report.note(
            "slime-layout", "slime's plugin reads its own layout: convert with --gdn-layout / --dsa-layout slime"
        )
    arguments = model_arguments(dims, mtp, spec)
    found = ModelArguments(family.name, mtp, [a.words() for a in arguments], {a.name: a.value for a in arguments})
    return Outcome(found, report.findings)


def _refuse(dims: Dims, plugin: bool, where: str, report: Report) -> None:
    if problems := inexpressible(dims, plugin):
        report.error(
            "model-not-expressible",
            "Megatron's arguments do not state all of this model",
            where=where,
            expected="a model that Megatron's arguments can say",
            actual="; ".join(problems),
            fix="build it in your model provider"
            + ("" if plugin else ", or ask for slime's flags if its plugin has it"),
        )
    if problems := inexpressible_rope(dims):
        report.error(
            "rope-not-expressible",
            "no Megatron argument states this rope",
            where=where,
            expected="a rope that Megatron's arguments can say",
            actual="; ".join(problems),
            fix="set the rope in your model provider",
        )
    report.raise_errors()
