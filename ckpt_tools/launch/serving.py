"""The flags with which a server speculates for one target: what slime's launch wizard asks for, from the checkpoint itself.

slime's rules (its page on speculative decoding): algorithm EAGLE, top-k 1, a depth gamma with gamma steps and gamma + 1 draft
tokens; gamma 3, and 4 with a `dsa` draft attention backend for the built-in layer of GLM-5.x. These are starting values, not
measured optima; a smoke report replaces them by what it measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from ..drafts.checks.pair import Rules
from ..drafts.servers import SGLANG, VLLM
from ..drafts.spec import EAGLE, EAGLE3, MTP, open_draft
from ..errors import CkptError, UsageProblem, error
from ..refs import HUB_PREFIX, expanded
from ..report import Outcome
from .case import Case
from .inputs import Inputs
from .measured import Gain, Measured, read_report
from .reading import open_case
from .releases import LATEST, key
from .speculation import architecture, built_in_problem

SLIME = "slime"
FORMS = (SGLANG, SLIME, VLLM)
DEFAULT_STEPS = 3
DSA_ARCHITECTURE, DSA_STEPS = "GlmMoeDsaForCausalLM", 4
VLLM_LATEST = "0.11"
# Before 0.11 vLLM called MTP by the family (config/speculative.py); since then every family is "mtp".
VLLM_OLD_METHODS = {
    "DeepseekV3ForCausalLM": "deepseek_mtp",
    "MiMoForCausalLM": "mimo_mtp",
    "Glm4MoeForCausalLM": "glm4_moe_mtp",
    "Ernie4_5_MoeForCausalLM": "ernie_mtp",
    "Qwen3NextForCausalLM": "qwen3_next_mtp",
}
PLACE = "$DRAFT"  # where a local path would stand


@dataclass(frozen=True, slots=True)
class ServeArgs:
    """`head` is "built-in" or the kind of the separate head; `draft` how it is named in the flags, "" for a built-in one.

    `chosen` says where `steps` come from: "given", "measured" or "default". `gains` are estimates, none without a smoke report.
    """

    form: str
    version: str
    head: str
    draft: str
    steps: int
    chosen: str
    flags: list[str]
    gains: list[Gain] = field(default_factory=list)


def serve_args(
    target: str,
    draft: str | None = None,
    steps: int | None = None,
    form: str = SGLANG,
    smoke: Path | None = None,
    version: str = "",
    with_paths: bool = False,
) -> Outcome[ServeArgs]:
    """Flags for the server `form`; `version` is that of SGLang or of vLLM.

    A separate head is verified against the target first. Raises CkptError with every finding where there is no head or where
    it does not fit. Without `with_paths` the outcome names no local path.
    """
    version = version or (VLLM_LATEST if form == VLLM else LATEST)
    before = form == VLLM and _before_one_name(version)
    case, _ = open_case(Inputs(target=target, draft=draft, sglang_version=LATEST if form == VLLM else version))
    case.report.raise_errors()
    measured = read_report(smoke) if smoke else None
    kind = _verified(case, form) if case.draft else _built_in(case, VLLM if form == VLLM and not before else SGLANG)
    if measured and smoke:
        _check_measured(case, kind, measured, smoke)
    depth, chosen = _depth(case, steps, measured)
    named = _named(draft, with_paths)
    flags = _vllm(case, kind, named, depth, version) if form == VLLM else _sglang(case, kind, named, depth)
    if form == SLIME:
        flags = ["--sglang-" + flag.removeprefix("--") for flag in flags]
    _remark(case, named, chosen, measured)
    head = kind if case.draft else "built-in"
    result = ServeArgs(form, version, head, named.name, depth, chosen, flags, list(measured.gains) if measured else [])
    findings = dict.fromkeys(
        case.report.findings if with_paths else [replace(f, where="") for f in case.report.findings]
    )
    return Outcome(result, list(findings))


def _before_one_name(version: str) -> bool:
    """Whether this vLLM calls MTP by the family; raises UsageProblem for a version that says no number."""
    if numbers := key(version):
        return numbers < key(VLLM_LATEST)
    raise error(
        UsageProblem,
        "server-version",
        f"{version!r} is no version of vLLM",
        expected=f"numbers, such as {VLLM_LATEST}",
        actual=version,
        fix="name the version that serves with --server-version",
    )


def _built_in(case: Case, server: str) -> str:
    if problem := built_in_problem(case, "EAGLE", server):
        raise CkptError(problem)
    if case.target is None or case.target.mtp is None:
        raise error(
            CkptError,
            "mtp-unknown",
            "nothing says whether the target has MTP layers",
            where=case.model_path,
            expected="a folder with an index or with weights",
            actual="a config alone",
            fix="name the folder of the model, or a head of its own",
        )
    return MTP


def _verified(case: Case, form: str) -> str:
    """A head that does not fit is never put on a command line."""
    from ..drafts.verify import verify_draft  # it reads manifests, which takes a third of a second to import

    assert case.target is not None
    assert case.draft is not None
    rules = Rules(server=VLLM if form == VLLM else SGLANG, headers_only=case.far)
    outcome = verify_draft(case.draft, case.target.read.root, rules)
    case.report.findings += outcome.findings
    case.report.raise_errors()
    return outcome.result.kind


def _check_measured(case: Case, kind: str, measured: Measured, smoke: Path) -> None:
    """The report is of this head; weights on the Hub or in the target are not hashed."""
    expected, actual = kind, measured.kind
    if expected == actual and case.draft and not case.far and measured.draft_hash:
        expected, actual = open_draft(case.draft).weights_hash(), measured.draft_hash
    if expected != actual:
        raise error(
            CkptError,
            "smoke-other-head",
            "the report measured another head",
            where=str(smoke),
            expected=expected,
            actual=actual,
            fix="run smoke with this head",
        )


def _depth(case: Case, steps: int | None, measured: Measured | None) -> tuple[int, str]:
    if steps is not None:
        return steps, "given"
    if measured:
        return measured.best.steps, "measured"
    built_in_dsa = case.draft is None and architecture(case) == DSA_ARCHITECTURE
    return (DSA_STEPS if built_in_dsa else DEFAULT_STEPS), "default"


@dataclass(frozen=True, slots=True)
class Named:
    """How a head is called in what is printed: a Hub id by its name, a local folder only if asked for. "" is a built-in one."""

    name: str = ""
    revision: str = ""


def _named(draft: str | None, with_paths: bool) -> Named:
    if draft is None:
        return Named()
    path = expanded(draft)
    if not draft.startswith(HUB_PREFIX) and path.exists():
        return Named(str(path.absolute()) if with_paths else PLACE)
    name, _, revision = draft.removeprefix(HUB_PREFIX).partition("@")
    return Named(name, revision)


def _sglang(case: Case, kind: str, draft: Named, steps: int) -> list[str]:
    words = [
        ("speculative-algorithm", "EAGLE3" if kind == EAGLE3 else "EAGLE"),
        *([("speculative-draft-model-path", draft.name)] if draft.name else []),
        *([("speculative-draft-model-revision", draft.revision)] if draft.revision else []),
        ("speculative-num-steps", str(steps)),
        ("speculative-eagle-topk", "1"),
        ("speculative-num-draft-tokens", str(steps + 1)),
    ]
    if not draft.name and architecture(case) == DSA_ARCHITECTURE:
        backend = "dsa" if "dsa-decode-backend" in case.release.flags else "nsa"  # its name before 0.5.15
        words.append(("speculative-draft-attention-backend", backend))
    absent = [name for name, _ in words if name not in case.release.flags]
    for name in absent:
        case.note("server-flag-unknown", f"SGLang {case.release.version} has no --{name}, which is left out")
    return [f"--{name} {_quoted(value)}" for name, value in words if name not in absent]


def _quoted(value: str) -> str:
    return f'"{PLACE}"' if value == PLACE else quote(value)


def _vllm(case: Case, kind: str, draft: Named, steps: int, version: str) -> list[str]:
    method = {EAGLE: "eagle", EAGLE3: "eagle3", MTP: "mtp"}[kind]
    if kind == MTP and _before_one_name(version):
        method = VLLM_OLD_METHODS.get(architecture(case), "")
    if not method:
        raise error(
            UsageProblem,
            "server-version",
            f"vLLM {version} has no MTP method for {architecture(case)}",
            expected=f"vLLM {VLLM_LATEST} or later",
            actual=version,
            fix="name the version that serves with --server-version",
        )
    config: dict[str, object] = {"method": method, "num_speculative_tokens": steps}
    config |= ({"model": draft.name} if draft.name else {}) | ({"revision": draft.revision} if draft.revision else {})
    text = json.dumps(config)
    if draft.name != PLACE:
        return [f"--speculative-config {quote(text)}"]
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')  # inside double quotes the shell puts the path in
    return [f'--speculative-config "{escaped}"']


def _remark(case: Case, draft: Named, chosen: str, measured: Measured | None) -> None:
    if draft.name == PLACE:
        case.note("path-left-out", f"{PLACE} stands for the head's local path; --with-paths writes it")
    if chosen == "default":
        case.note("depth-not-measured", "the depth is a starting value; `ckpt-tools smoke` measures which one pays")
    if measured and measured.best.speed_up <= 1:
        case.report.warn(
            "no-gain",
            "no depth is expected to be faster than the target alone",
            expected="a speed-up above 1",
            actual=f"{measured.best.speed_up:.2f} with {measured.best.steps} steps, on {measured.device}",
            fix="train the head further, or serve without it",
        )
