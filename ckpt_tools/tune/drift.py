"""How much of a head's acceptance survives when its target moved from A to B, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..drafts.export import check_pair
from ..drafts.formats.targets import read_target
from ..drafts.spec import MTP, DraftSpec, open_draft
from ..errors import CkptError, error
from ..report import Outcome, Report
from ..speculate.build import build_head
from ..speculate.decode import Limits
from ..speculate.prompts import BUILTIN, Texts, read_prompts
from ..speculate.results import Acceptance, acceptance
from ..speculate.target import Run, Target, load_target
from .rollout import Rollout, roll_out
from .samples import Sample

KEEP, TUNE, EXTRACT = "keep", "tune", "re-extract"
SURVIVES = 0.9  # the share of accepted drafts from which on a head is kept
SURE = 2.0  # standard errors
NO_HEAD = 0.05  # accepted drafts per verification below which A's figure says nothing about B's


@dataclass(frozen=True, slots=True)
class Options:
    """`first` prompts of `prompts` (a file or "builtin"), decoded greedily with `steps` drafts per verification."""

    prompts: str = BUILTIN
    first: int | None = None
    new_tokens: int = 64
    steps: int = 3
    device: str = "cpu"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The two targets on B's samples, teacher-forced, over the `tokens` that B generated: mean KL(A || B) and KL(B || A) in
    nats per token, and the share of tokens of which A's likeliest is B's."""

    tokens: int
    a_from_b: float
    b_from_a: float
    agreement: float


@dataclass(slots=True)
class Drift:
    """`a` and `b`: what the head did on each target; `own`: what B's own MTP layers did on B (null if B has none, or the head
    is no MTP head). `survived`: accepted drafts per verification on B as a share of those on A; `error` is its standard
    error. `advice` is "keep", "tune" or "re-extract" (take B's own layers); `reason` says why."""

    target_a: str
    target_b: str
    draft: str
    kind: str
    steps: int
    prompts: int
    a: Acceptance
    b: Acceptance
    survived: float
    error: float
    divergence: Divergence
    advice: str
    reason: str
    own: Acceptance | None = field(default=None)


def drift(
    target_a: Path, target_b: Path, draft: Path, options: Options, hf_config: Path | None = None
) -> Outcome[Drift]:
    """Measure; raises CkptError for a head that does not fit both targets, and for one that A accepts nothing of."""
    entries = read_prompts(options.prompts)[: options.first]
    spec, report = open_draft(draft, hf_config), Report()
    for path in (target_a, target_b):
        check_pair(spec, read_target(path), report)
    report.raise_errors()
    report.findings += spec.findings
    a, b = (load_target(path, options.device, getattr(torch, options.dtype)) for path in (target_a, target_b))
    on_a, on_b = _rolled(a, spec, entries, options), _rolled(b, spec, entries, options)
    own_spec = _own(target_b, draft, spec)
    own = _rolled(b, own_spec, entries, options) if own_spec else None
    measured_a, measured_b = acceptance(on_a.counters), acceptance(on_b.counters)
    _check_accepts(measured_a, draft, target_a)
    survived, uncertain = share(measured_b, measured_a)
    measured_own = acceptance(own.counters) if own else None
    advice, reason = advise(survived, measured_b, measured_own)
    result = Drift(
        target_a=str(target_a),
        target_b=str(target_b),
        draft=str(draft),
        kind=spec.kind,
        steps=on_b.counters.steps,
        prompts=len(entries),
        a=measured_a,
        b=measured_b,
        survived=survived,
        error=uncertain,
        divergence=divergence(a, b, on_b.samples),
        advice=advice,
        reason=reason,
        own=measured_own,
    )
    _warn_if_unsure(result, report)
    return Outcome(result, report.findings)


def _rolled(target: Target, spec: DraftSpec, entries: Sequence[object], options: Options) -> Rollout:
    texts, head = Texts(target), build_head(spec, target)
    prompts = [texts.prompt(entry).ids for entry in entries]
    steps = options.steps if head.depth == 1 else min(options.steps, head.depth)
    return roll_out(target, head, prompts, Limits(options.new_tokens, texts.stop), steps)


def _own(target_b: Path, draft: Path, spec: DraftSpec) -> DraftSpec | None:
    """The MTP layers inside B, if the head is of that kind and is not B itself."""
    if spec.kind != MTP or target_b.resolve() == draft.resolve():
        return None
    try:
        found = open_draft(target_b)
    except CkptError:
        return None
    return found if found.kind == MTP and found.mtp_layers and not found.errors else None


def share(b: Acceptance, a: Acceptance) -> tuple[float, float]:
    """(accepted drafts per verification in `b` as a share of those in `a`, standard error of that share).

    The error is that of a ratio of two means over independent verifications (delta method).
    """
    ratio = b.accepted_per_step / a.accepted_per_step
    relative = [spread(one) / max(one.accepted_per_step, 1e-9) for one in (a, b)]
    return ratio, ratio * math.hypot(*relative) if b.accepted else spread(b) / a.accepted_per_step


def spread(found: Acceptance) -> float:
    """The standard error of accepted drafts per verification, from its histogram."""
    mean, count = found.accepted_per_step, max(found.verifications, 1)
    variance = sum(number * (k - mean) ** 2 for k, number in enumerate(found.histogram)) / count
    return math.sqrt(variance / count)


def advise(survived: float, b: Acceptance, own: Acceptance | None) -> tuple[str, str]:
    """(advice, why)."""
    if own is not None and own.accepted_per_step - b.accepted_per_step > SURE * math.hypot(spread(own), spread(b)):
        return (
            EXTRACT,
            f"B's own MTP layers accept more: accept length {own.accept_length:.3f}, not {b.accept_length:.3f}",
        )
    if survived >= SURVIVES:
        return KEEP, f"{survived:.0%} of the accepted drafts survive, {SURVIVES:.0%} are enough"
    return TUNE, f"{survived:.0%} of the accepted drafts survive, less than {SURVIVES:.0%}"


@torch.inference_mode()
def divergence(a: Target, b: Target, samples: Sequence[Sample]) -> Divergence:
    """Over every generated token of `samples`, each predicted from those before it."""
    tokens, sums = 0, torch.zeros(3, dtype=torch.float64)
    for sample in samples:
        if not sample.generated:
            continue
        p, q = (_log_probabilities(target, sample) for target in (a, b))
        same = (p.argmax(-1) == q.argmax(-1)).float()
        rows = torch.stack([(p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1), same])
        sums += rows.double().sum(1).cpu()
        tokens += sample.generated
    a_from_b, b_from_a, agreement = (sums / max(tokens, 1)).clamp(min=0).tolist()  # rounding can fall below 0
    return Divergence(tokens, a_from_b, b_from_a, agreement)


def _log_probabilities(target: Target, sample: Sample) -> Tensor:
    """[generated, V], fp32."""
    hidden, _ = Run(target).feed(sample.ids[:-1])
    return target.logits(hidden[0, sample.prompt - 1 :]).float().log_softmax(-1)


def _check_accepts(a: Acceptance, draft: Path, target_a: Path) -> None:
    if a.accepted_per_step < NO_HEAD:
        raise error(
            CkptError,
            "head-accepts-nothing",
            "A accepts next to nothing of this head, so that nothing can survive",
            where=str(draft),
            expected=f"at least {NO_HEAD} accepted drafts per verification on {target_a}",
            actual=f"{a.accepted_per_step:.3f} over {a.verifications} verifications",
            fix="give the target that the head was trained for as TARGET_A; `ckpt-tools smoke` says what is wrong with a head",
        )


def _warn_if_unsure(result: Drift, report: Report) -> None:
    if abs(result.survived - SURVIVES) < SURE * result.error and result.advice != EXTRACT:
        report.warn(
            "drift-uncertain",
            "too few verifications to tell whether the head should be kept",
            expected=f"a standard error below {abs(result.survived - SURVIVES) / SURE:.3f}",
            actual=f"survived {result.survived:.3f} +- {result.error:.3f} over {result.b.verifications} verifications",
            fix="more --prompts, or a larger --max-new-tokens",
        )
