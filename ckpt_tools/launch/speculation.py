"""Speculative decoding as the server is told: algorithm, steps, branches, tokens, and where the head comes from."""

from __future__ import annotations

from pathlib import Path

from ..drafts.checks.chain import chain_problem
from ..drafts.checks.pair import Rules
from ..drafts.servers import SGLANG, SGLANG_MTP, VLLM, VLLM_MTP
from ..drafts.spec import first_architecture, open_draft
from ..errors import CkptError, Finding
from .case import Case

SPECULATION, HEAD = "speculation", "draft head"
ALGORITHM, STEPS, TOPK, TOKENS = (
    "speculative-algorithm",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
)
PATH = ("speculative-draft-model-path", "speculative-draft-model")
BUILT_IN = ("EAGLE", "NEXTN")
WITH_HEAD = (*BUILT_IN, "EAGLE3")
# speculative/spec_info.py of 0.5.23; plugins may register more.
ALGORITHMS = (*WITH_HEAD, "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
# What SGLang takes where no number is given (arg_groups/speculative_hook.py, _auto_choose_speculative_params).
AUTOMATIC = {"LlamaForCausalLM": (5, 4, 8), "Grok1ForCausalLM": (5, 4, 8)}
AUTOMATIC_ELSE = (3, 1, 4)
# Architectures for which SGLang fills in the target as its own draft model (same file, _handle_eagle_family).
NO_PATH = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
)


def architecture(case: Case) -> str:
    return first_architecture(case.config)


def automatic(name: str) -> tuple[int, int, int]:
    """(steps, top-k, draft tokens) that SGLang chooses for an architecture."""
    return AUTOMATIC.get(name, AUTOMATIC_ELSE)


def numbers(case: Case) -> tuple[int | None, int | None, int | None]:
    """(steps, top-k, draft tokens) as given."""
    return case.number(case.serving, STEPS), case.number(case.serving, TOPK), case.number(case.serving, TOKENS)


def check_speculation(case: Case) -> None:
    """L6: the three numbers, and an algorithm that the server knows."""
    given = [name for name in (ALGORITHM, STEPS, TOPK, TOKENS, *PATH) if name in case.serving]
    algorithm = case.text(case.serving, ALGORITHM)
    if not given or case.unread & set(given):
        case.skipped(SPECULATION, "not asked for" if not given else "its flags are not known")
        return
    if algorithm is None:
        _wrong(
            case,
            "speculation-off",
            f"--{given[0]} does nothing without an algorithm",
            f"--{ALGORITHM}",
            "absent",
            given[0],
        )
        return
    if algorithm.upper() not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        _wrong(case, "algorithm-unknown", "SGLang has no such algorithm", known, algorithm, ALGORITHM)
        return
    if algorithm.upper() in WITH_HEAD:
        _check_numbers(case)
    else:
        case.skipped(SPECULATION, f"{algorithm} has numbers of its own")


def _check_numbers(case: Case) -> None:
    steps, topk, tokens = numbers(case)
    if steps is None:
        if (topk, tokens) != (None, None):
            actual = ", ".join(
                f"--{name} {value}" for name, value in ((TOPK, topk), (TOKENS, tokens)) if value is not None
            )
            what = "SGLang chooses all three numbers or none"
            _wrong(
                case,
                "spec-args",
                what,
                f"--{STEPS} as well, or none of them",
                actual,
                TOPK if topk is not None else TOKENS,
            )
            return
        steps, topk, tokens = automatic(architecture(case))
        case.note("spec-automatic", f"SGLang chooses {steps} steps, top-k {topk}, {tokens} draft tokens")
    elif topk is None:
        what = "steps are given and the branches are not: SGLang chooses all three numbers or none"
        _wrong(case, "spec-args", what, f"--{TOPK} 1", "absent", STEPS)
        return
    assert topk is not None
    if problem := chain_problem(steps, topk, tokens):
        where = case.serving.first(TOKENS, STEPS)
        finding = Finding(
            problem.code, problem.what, where.where if where else "", problem.expected, problem.actual, problem.fix
        )
        case.found(SPECULATION, finding)
        return
    case.passed(SPECULATION, f"{steps} steps, top-k {topk}", f"{steps + 1 if tokens is None else tokens} draft tokens")
    if case.mtp and steps > case.mtp and case.draft is None:
        case.note("mtp-layer-reused", f"{case.mtp} MTP layer serves {steps} steps, one after another")


def _wrong(case: Case, code: str, what: str, expected: str, actual: str, flag: str) -> None:
    given = case.serving.first(flag)
    fix = "see `ckpt-tools serve-args`"
    case.found(SPECULATION, Finding(code, what, given.where if given else "", expected, actual, fix))


def check_head(case: Case) -> None:
    """A head of its own must fit; without one the target must have MTP layers that the server can run."""
    algorithm = (case.text(case.serving, ALGORITHM) or "").upper()
    if case.draft is not None:
        _check_pair(case, case.draft, algorithm)
    elif algorithm not in WITH_HEAD or case.serving.first(*PATH):
        case.skipped(HEAD, "no head asked for" if algorithm not in WITH_HEAD else "its path is not known")
    elif case.target is None and case.stored is None:
        case.skipped(HEAD, "no checkpoint to look at")
    else:
        _check_built_in(case, algorithm)


def built_in_problem(case: Case, algorithm: str, server: str = SGLANG) -> Finding | None:
    """Why the server cannot draft with MTP layers of the target itself; None if it can, or if nothing tells."""
    name = architecture(case)
    mtp = _target_layers(case)
    where = str(case.target.read.root) if case.target else case.model_path
    if algorithm not in BUILT_IN:
        what = f"{algorithm} needs a head of its own"
    elif server == VLLM and case.config.get("model_type") not in VLLM_MTP:
        what = f"no MTP class of vLLM is known for {name or 'a model without an architecture'}"
    elif server == SGLANG and name not in SGLANG_MTP:
        what = f"SGLang has no MTP class for {name or 'a model without an architecture'}"
    elif mtp == 0:
        what = "the target has no MTP layers"
    else:
        return None
    fix = f"give a head with --{PATH[0]}, or do without speculation" if server == SGLANG else "give a head of its own"
    return Finding("draft-needed", what, where, "MTP layers in the target, or a head", f"{mtp or 0} MTP layers", fix)


def _target_layers(case: Case) -> int | None:
    return case.target.mtp if case.target else case.mtp


def _check_built_in(case: Case, algorithm: str) -> None:
    mtp = _target_layers(case)
    if problem := built_in_problem(case, algorithm):
        case.found(HEAD, problem)
    elif mtp is None:
        case.skipped(HEAD, "nothing says whether the target has MTP layers")
    else:
        case.passed(HEAD, f"MTP layers for {SGLANG_MTP[architecture(case)]}", f"{mtp} in the target")


def _check_pair(case: Case, draft: Path, algorithm: str) -> None:
    if case.target is None:
        case.skipped(HEAD, "no target to hold the head against")
        return
    from ..drafts.verify import verify_draft  # it reads manifests, which takes a third of a second to import

    if architecture(case) in NO_PATH and draft.resolve() == case.target.read.root.resolve():
        case.note(
            "draft-path-superfluous", "SGLang takes the target's own MTP layers without --speculative-draft-model-path"
        )
    steps, topk, tokens = numbers(case) if case.serving.given else (None, None, None)
    asked = algorithm.lower() if algorithm in WITH_HEAD else ""
    rules = Rules(algorithm=asked, steps=steps, topk=topk, draft_tokens=tokens, headers_only=case.far)
    try:
        outcome = verify_draft(draft, case.target.read.root, rules)
    except CkptError as problem:
        for finding in problem.findings:
            case.found(HEAD, finding)
        return
    case.head = open_draft(draft)
    for finding in outcome.findings:
        if finding.severity == "note" or finding.code == "spec-args":
            case.report.findings += [finding] if finding.severity == "note" else []
        else:
            case.found(HEAD, finding)
    if outcome.result.fits:
        case.passed(
            HEAD, outcome.result.server_class or outcome.result.architecture, f"{outcome.result.kind}, fits the target"
        )
