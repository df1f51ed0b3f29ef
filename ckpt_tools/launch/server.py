"""The flags of the inference server, against those that the named SGLang release has, and what slime makes of its counters."""

from __future__ import annotations

from ..errors import Finding
from ..report import listed
from .case import Case, plural
from .flags import Flags, Given
from .releases import SLIME_LENGTH, SLIME_METRICS, SLIME_SETS, SLIMES_OWN, ever_known, versions

FLAGS, METRICS = "server flags", "server metrics"
OWN = frozenset(
    ("speculative-algorithm", "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
)


def check_server_flags(case: Case) -> None:
    """Unknown, renamed and removed flags: SGLang refuses to start, slime drops them and says nothing."""
    if not case.serving.given:
        case.skipped(FLAGS, "no serving flags")
        return
    if not case.release.exact:
        case.note(
            "server-version-between",
            f"no table for SGLang {case.release.asked}; that of {case.release.version} is used",
            actual=f"tables: {', '.join(versions())}",
        )
    before = len(case.report.errors)
    for given in case.serving:
        name = given.flag.removeprefix("sglang-") if case.slime else given.flag
        if name in case.release.flags and not (case.slime and name in SLIME_SETS):
            continue
        if not (case.slime and name in SLIMES_OWN):
            _unknown(case, name, given)
    _check_prefix(case)
    if len(case.report.errors) == before:
        case.passed(FLAGS, f"flags of SGLang {case.release.version}", plural(len(case.serving.given), "flag"))


def _unknown(case: Case, name: str, given: Given) -> None:
    prefix = "--sglang-" if case.slime else "--"
    effect = "slime would drop it without a word" if case.slime else "the server would not start"
    if case.slime and name in SLIME_SETS:
        what = f"slime sets {prefix}{name} itself and does not take it"
        finding = Finding("server-flag-unknown", what, given.where, "no such flag", given.words, "remove it")
    elif successor := case.release.successor(name):
        what = f"SGLang {case.release.version} calls {prefix}{name} {prefix}{successor}; {effect}"
        finding = Finding(
            "server-flag-renamed", what, given.where, prefix + successor, given.words, f"write {prefix}{successor}"
        )
    else:
        near = case.release.near(name)
        state = "no longer has" if ever_known(name) else "has no"
        what = f"SGLang {case.release.version} {state} {prefix}{name}; {effect}"
        code = "server-flag-removed" if ever_known(name) else "server-flag-unknown"
        expected = prefix + near if near else "a flag of this release"
        finding = Finding(
            code, what, given.where, expected, given.words, "remove it, or name the release with --sglang-version"
        )
    case.found(FLAGS, finding)


def _check_prefix(case: Case) -> None:
    """slime takes the server's flags with a prefix only."""
    for name in OWN if case.slime else ():
        if given := case.training.first(name):
            case.found(
                FLAGS,
                Finding(
                    "server-flag-prefix",
                    f"slime takes --{name} as --sglang-{name}; without the prefix it is dropped without a word",
                    given.where,
                    f"--sglang-{name}",
                    given.words,
                    f"write --sglang-{name}",
                ),
            )


def check_metrics(case: Case) -> None:
    """The counters that slime reads from every answer, against those that this release emits."""
    if not case.slime or case.text(case.serving, "speculative-algorithm") is None:
        case.skipped(METRICS, "no speculation in a slime script")
        return
    absent = [name for name in SLIME_METRICS if name not in case.release.metrics]
    if not absent:
        case.passed(METRICS, ", ".join(SLIME_METRICS), "emitted")
        return
    emitted = sorted(name for name in case.release.metrics if name.startswith("spec_num_"))
    case.found(
        METRICS,
        Finding(
            "server-metrics",
            f"slime's accept rate will read 0: SGLang {case.release.version} does not emit what it is made of",
            "",
            listed(absent),
            listed(emitted),
            f"watch the accept length, which is made of {SLIME_LENGTH} and right",
            severity="warning",
        ),
    )


def serving_flags(training: Flags, alone: Flags, slime: bool) -> Flags:
    """The server's flags: those of a command line of its own, else those of slime's script without their prefix."""
    if alone.given:
        return alone
    return training.without("sglang-") if slime else Flags()
