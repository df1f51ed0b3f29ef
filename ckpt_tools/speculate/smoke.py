"""The smoke test: does speculative decoding with this head give the target's own text, how many drafts are accepted, is
it faster, and does anything about the head look wrong?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..drafts.checks.origin import identify_target
from ..drafts.checks.pair import Rules
from ..drafts.spec import DraftSpec, open_draft
from ..drafts.verify import verify_draft
from ..errors import CkptError, Finding
from ..report import Outcome
from .build import build_head
from .counters import Counters
from .decode import Decoded, Limits, plain, plain_steps, speculative, speculative_steps
from .diagnosis import diagnose
from .draft import Draft
from .head import Head
from .loss import Rows, judge, rows_of, vocabulary
from .lossless import TOLERANCE, compare, tie_note
from .measure import Tally, Watched, calibration, dummy, in_turns, timing
from .preconditions import check_options, check_pair
from .prompts import BUILTIN, Prompt, Texts, read_prompts
from .results import (
    ACCEPTED,
    OWN,
    REJECTED,
    HeadLoss,
    Piece,
    Setting,
    SmokeReport,
    Text,
    Tie,
    acceptance,
)
from .target import Target, load_target
from .tensors import read_head
from .tree import TreeShape, at_depth, shape_of
from .verification import GREEDY, Sampling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SERVERS_ONLY = ("mtp-layers-several",)  # SGLang's classes hold one layer; several are run here
JUDGED_AT_LEAST = 8  # positions that the head's cross-entropy needs
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`prompts` is "builtin" or a file, of which `most` are used. `depths`: 1 to that many steps are timed on the first
    `timed` prompts; 0 times nothing."""

    steps: int = 3
    max_new_tokens: int = 64
    prompts: str = BUILTIN
    most: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    sampling: Sampling = GREEDY
    depths: int = 4
    timed: int = 3
    topk: int = 1
    num_draft_tokens: int | None = None

    @property
    def shape(self) -> TreeShape:
        return shape_of(self.steps, self.topk, self.num_draft_tokens)


@dataclass(slots=True)
class _Running:
    """One smoke test while it runs."""

    target: Target
    head: Head
    options: Options
    shape: TreeShape
    limits: Limits
    counters: Counters
    texts: Texts
    tally: Tally = field(default_factory=Tally)
    found: list[Finding] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    shown: list[Text] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)


def smoke(
    target_path: Path, draft_path: Path, options: Options, progress: Progress = lambda text: None
) -> Outcome[SmokeReport]:
    """Run everything. Raises CkptError with every finding of `verify-draft` where the head does not fit at all."""
    shape = options.shape
    check_options(options.device, options.sampling, shape)
    findings = _verified(draft_path, target_path, options)
    progress("loading")
    target = load_target(target_path, options.device, DTYPES[options.dtype])
    spec = open_draft(draft_path)
    head = build_head(spec, target)
    check_pair(target, head, shape)
    run = _running(target, head, options, shape)
    prompts = [run.texts.prompt(entry) for entry in read_prompts(options.prompts)[: options.most]]
    for number, prompt in enumerate(prompts):
        progress(f"prompt {number + 1} of {len(prompts)}")
        _decode(run, prompt, number)
    progress("judging the head")
    loss = _judge(run, spec)
    report = SmokeReport(
        target=str(target_path),
        draft=str(draft_path),
        kind=spec.kind,
        form=spec.form,
        target_hash=target_hash(target_path),
        draft_hash=spec.weights_hash(),
        setting=setting_of(options, len(prompts)),
        lossless=None if not options.sampling.greedy else not any(f.code == "smoke-not-lossless" for f in run.found),
        acceptance=acceptance(run.counters),
        ties=run.ties,
        loss=loss,
        timing=timing(run.tally, shape.chain),
        texts=run.shown,
    )
    return Outcome(report, [*findings, *run.found, *_about(report, options)])


def _verified(draft: Path, target: Path, options: Options) -> list[Finding]:
    """What verify-draft says; raises its errors, but for what only the server cannot do."""
    found = [
        replace(finding, severity="warning") if finding.code in SERVERS_ONLY else finding
        for finding in verify_draft(draft, target, Rules(steps=options.steps)).findings
    ]
    if any(finding.severity == "error" for finding in found):
        raise CkptError(*found)
    return found


def _running(target: Target, head: Head, options: Options, shape: TreeShape) -> _Running:
    texts = Texts(target)
    limits = Limits(options.max_new_tokens, texts.stop)
    return _Running(target, head, options, shape, limits, counters_of(shape), texts)


def _decode(run: _Running, prompt: Prompt, number: int) -> None:
    """One prompt: the target alone, with the head, compared, and the other depths if it is timed."""
    options, sampling = run.options, run.options.sampling
    alone = plain(run.target, prompt.ids, run.limits, sampling)
    found = speculative(run.target, run.head, prompt.ids, run.limits, run.counters, sampling, run.shape)
    equal: bool | None = None
    if sampling.greedy:
        ties, wrong = compare(run.target, prompt.ids, alone.tokens, found.tokens, number)
        run.ties += ties
        run.found += [wrong] if wrong else []
        equal = alone.tokens == found.tokens
    if number < options.timed and options.depths:
        _time(run, prompt)
    if (rows := rows_of(run.target, run.head.boundaries, prompt.ids, alone.tokens)) is not None:
        run.rows.append(rows)
    shown = Text(prompt.shown, run.texts.text(found.tokens), len(found.tokens), equal, _pieces(run.texts, found))
    run.shown.append(shown)


def _time(run: _Running, prompt: Prompt) -> None:
    """The target alone, every depth and the calibration on the same prompt, pass by pass in turns."""
    target, limits, sampling, tally = run.target, run.limits, run.options.sampling, run.tally
    deepest = run.options.depths if run.head.depth == 1 else min(run.options.depths, run.head.depth)
    alone = Watched(plain_steps(target, prompt.ids, limits, sampling))
    depths: dict[int, Watched] = {}
    sizes = [Draft([])]
    for steps in range(1, deepest + 1):
        shape = at_depth(run.shape, steps)
        counters = tally.counters.setdefault(steps, counters_of(shape))
        depths[steps] = Watched(speculative_steps(target, run.head, prompt.ids, limits, counters, sampling, shape))
        if shape.drafts > len(sizes[-1].tokens):
            sizes.append(dummy(shape, prompt.ids[0]))
    in_turns(alone, *depths.values(), calibration(target, prompt.ids, sizes, tally.verify))
    tally.add_plain(alone.last)
    for steps, watched in depths.items():
        tally.add(steps, watched.last)


def _judge(run: _Running, spec: DraftSpec) -> HeadLoss | None:
    if sum(len(rows.wanted) - rows.first for rows in run.rows) < JUDGED_AT_LEAST:
        return None
    loss = judge(run.head, run.rows).summary(vocabulary(run.head))
    tensors = {name: tensor.to(run.head.device) for name, tensor in read_head(spec, run.target.dtype).items()}
    run.found += diagnose(spec, run.head, tensors, run.rows, loss)
    return loss


def _about(report: SmokeReport, options: Options) -> list[Finding]:
    """What the figures say."""
    found = [tie_note(report.ties, TOLERANCE[DTYPES[options.dtype]])] if report.ties else []
    found += no_accept(report)
    if report.timing is not None and not report.timing.best_steps:
        best = max(report.timing.depths, key=lambda depth: depth.measured)
        found.append(
            Finding(
                "head-does-not-pay",
                "this head does not pay on this machine: no number of steps is faster than the target alone",
                report.draft,
                "a speed-up above 1",
                f"{best.measured:.2f} at best, with {best.steps} steps",
                "the table says where the time goes; a larger target or a GPU shifts the balance",
                "warning",
            )
        )
    return found


def no_accept(report: SmokeReport) -> list[Finding]:
    """L1: an accept length of exactly 1 is no success, it is what decoding without a head does."""
    if report.acceptance.accepted or not report.acceptance.verifications:
        return []
    return [
        Finding(
            "smoke-no-accept",
            "the target accepted no draft: every verification gave one token, as decoding without a head does",
            report.draft,
            "an accept length above 1",
            f"{report.acceptance.accept_length:.3f} over {report.acceptance.verifications} verifications",
            "a head that loads may still be useless; the other findings say what is known",
        )
    ]


def _pieces(texts: Texts, run: Decoded) -> list[Piece]:
    """The text with what was drafted, and what was rejected before the token that took its place."""
    kinds: list[tuple[str, list[int]]] = []
    for number, (token, accepted) in enumerate(zip(run.tokens, run.accepted, strict=True)):
        if number in run.rejected:
            kinds.append((REJECTED, run.rejected[number]))
        kind = ACCEPTED if accepted else OWN
        if kinds and kinds[-1][0] == kind:
            kinds[-1][1].append(token)
        else:
            kinds.append((kind, [token]))
    return [Piece(kind, texts.text(tokens)) for kind, tokens in kinds]


def counters_of(shape: TreeShape) -> Counters:
    return Counters(shape.steps, drafts=shape.drafts)


def setting_of(options: Options, prompts: int) -> Setting:
    greedy = options.sampling.greedy
    return Setting(
        device=options.device,
        dtype=options.dtype,
        steps=options.steps,
        max_new_tokens=options.max_new_tokens,
        prompts=prompts,
        method="greedy" if greedy else options.sampling.method,
        temperature=options.sampling.temperature,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        topk=options.topk,
        num_draft_tokens=options.num_draft_tokens if options.topk > 1 else None,
    )


def target_hash(path: Path) -> str:
    """The sampled weights hash of the target's identity; "" for a target that no family knows."""
    try:
        return identify_target(path).weights_hash
    except CkptError:
        return ""
