"""The checkpoints themselves: does torch-dist hold what the flags ask for, and is it the same model as the target?"""

from __future__ import annotations

from pathlib import Path

from ..drafts.identity import arch_fields, shown
from ..drafts.tokenizer import read_tokenizer
from ..errors import CkptError, Finding
from ..families.base import MEGATRON
from ..stores.torch_dist.reader import METADATA, RELEASE, TRACKER, TorchDist
from .case import Case, plural

STORED, MTP, IDENTITY, LAYOUT, TRACKED = "torch-dist", "MTP layers", "same model", "layer layout", "tracker file"
FIT = "convert the model again with its MTP layers, or correct the flags"


def check_stored(case: Case) -> None:
    """Every tensor that the family's table enumerates is in the torch-dist directory, with its shape."""
    if case.stored is None:
        case.skipped(STORED, "none given")
        return
    store = case.stored.store
    for finding in store.report.findings:
        if finding.severity == "note":
            case.report.findings.append(finding)
        else:
            case.found(STORED, finding)
    if not store.report.errors and isinstance(store, TorchDist):
        case.passed(STORED, f"every tensor of {case.stored.family.name}", plural(len(store.model_keys), "tensor"))


def check_tracker(case: Case, root: Path | None) -> None:
    """Megatron and slime find an iteration by the tracker file; without it slime starts from elsewhere without a word."""
    if root is None or case.stored is None:
        return
    iteration = (root / METADATA).is_file()
    tracker = (root.parent if iteration else root) / TRACKER
    if tracker.is_file():
        said = tracker.read_text(encoding="utf-8", errors="replace").strip()
        case.passed(TRACKED, RELEASE + " or a number", said)
    elif iteration:
        case.note(
            "iteration-directory", f"{root} is one iteration; --load wants the directory above it, with {TRACKER}"
        )
    else:
        case.found(
            TRACKED,
            Finding(
                "tracker-missing",
                f"no {TRACKER} says which iteration to load",
                str(root),
                f"{TRACKER} with a number or the word {RELEASE}",
                "no such file",
                f"write it: echo {RELEASE} > {tracker}",
            ),
        )


def check_mtp(case: Case) -> None:
    """MTP layers: asked for by flags, stored, and trained at all."""
    flags, stored = case.training, case.mtp
    wanted = case.number(flags, "mtp-num-layers")
    training = flags.first("enable-mtp-training")
    if not flags.given or (wanted is None and flags.holes) or "mtp-num-layers" in case.unread:
        case.skipped(MTP, "no training flags" if not flags.given else "--mtp-num-layers is not known")
        return
    if training and not wanted:
        case.found(
            MTP,
            Finding(
                "mtp-training-without-layers",
                "--enable-mtp-training has no MTP layer to train",
                training.where,
                f"--mtp-num-layers {stored or 1}",
                "no --mtp-num-layers",
                f"add --mtp-num-layers {stored or 1}" if stored or stored is None else FIT,
            ),
        )
        return
    if stored is None:
        case.skipped(MTP, "nothing says what the checkpoint holds")
        return
    if (wanted or 0) != stored and wanted:
        given = flags.first("mtp-num-layers")
        case.found(
            MTP,
            Finding(
                "mtp-count",
                f"--mtp-num-layers asks for {wanted} and the checkpoint holds {stored}",
                given.where if given else case.model_path,
                f"{wanted} MTP layers",
                f"{stored} in {case.model_path}",
                FIT
                + ("; slime's loader would leave the layer at random values without a word" if wanted > stored else ""),
            ),
        )
        return
    case.passed(MTP, f"{wanted or 0} asked for", f"{stored} stored")
    if stored and not training and (case.text(case.serving, "speculative-algorithm") is not None):
        case.note(
            "mtp-not-trained", "the MTP layers stay as they are while the target is trained; watch the accept length"
        )


def check_layout(case: Case) -> None:
    """slime's layer plugins and Megatron's own modules store delta nets and indexers differently."""
    family, flags = case.family, case.training
    if family is None or family.slime_spec is None or not flags.given or (flags.holes and "spec" not in flags):
        return
    spec = flags.first("spec")
    if case.slime and spec is None:
        line = f"--spec {' '.join(family.slime_spec)}"
        fix = f"add {line}"
        what = "slime has these layers only through its plugin"
        case.found(LAYOUT, Finding("flag-missing", what, case.model_path, line, "no --spec", fix))
        return
    wanted = "slime" if spec and spec.values == family.slime_spec else "mcore"
    if spec and wanted == "mcore":
        case.skipped(LAYOUT, f"{spec.words} is not a plugin that is known")
        return
    kinds = [
        variant for variant in family.variants if variant.side == MEGATRON and variant.options == ("mcore", "slime")
    ]
    if case.stored is None or not kinds:
        return
    for variant in kinds:
        keys = case.stored.store.model_keys if isinstance(case.stored.store, TorchDist) else set()
        found = variant.detect(case.stored.dims, keys)
        if found in (None, wanted):
            case.passed(LAYOUT, f"{variant.kind}: {wanted}", found or "no such layer")
        else:
            case.found(
                LAYOUT,
                Finding(
                    "layer-layout",
                    f"the {variant.kind} layers are stored for {found}, and the flags build those of {wanted}",
                    str(case.stored.store.root),
                    f"--{variant.kind}-layout {wanted}",
                    str(found),
                    f"convert with --{variant.kind}-layout {wanted}",
                ),
            )


def check_identity(case: Case) -> None:
    """The target and the torch-dist directory describe one architecture and one tokenizer."""
    if case.stored is None or case.target is None or case.target.read.family is None or case.target.read.dims is None:
        case.skipped(IDENTITY, "needs a target and a torch-dist directory, both of a known family")
        return
    read, stored = case.target.read, case.stored
    if read.config_path == stored.config_path:
        case.skipped(IDENTITY, "the torch-dist directory carries no config of its own")
        return
    assert read.family is not None and read.dims is not None
    ours, theirs = arch_fields(read.family, read.dims), arch_fields(stored.family, stored.dims)
    if names := [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]:
        case.found(
            IDENTITY,
            Finding(
                "other-model",
                f"target and torch-dist are not the same model: {', '.join(names)}",
                str(stored.store.root),
                ", ".join(f"{name} {shown(ours.get(name))}" for name in names) + f" ({read.config_path})",
                ", ".join(f"{name} {shown(theirs.get(name))}" for name in names),
                "name the model that the directory was converted from",
            ),
        )
        return
    case.passed(IDENTITY, read.family.name, "every dimension agrees")
    _check_tokenizer(case, read.root, stored.config_path.parent)


def _check_tokenizer(case: Case, target: Path, carried: Path) -> None:
    try:
        both = read_tokenizer(target), read_tokenizer(carried)
    except CkptError as problem:
        case.report.findings += problem.findings
        return
    if (
        both[0]
        and both[1]
        and both[0].hash.partition(":")[0] == both[1].hash.partition(":")[0]
        and both[0].hash != both[1].hash
    ):
        case.found(
            IDENTITY,
            Finding(
                "tokenizer-differs",
                "the tokenizer beside the torch-dist weights is not the target's",
                str(carried),
                both[0].hash,
                both[1].hash,
                "use one tokenizer for training and serving",
                severity="warning",
            ),
        )
