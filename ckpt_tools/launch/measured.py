"""A smoke report as input: how deep a chain pays, by measured acceptance and times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..drafts.speedup import expected_accepted, speed_up
from ..errors import CkptError, error
from ..stores.hf_folder import read_json

NEEDED = {"timing": ("draft", "verify", "target", "overhead"), "acceptance": ("by_position",)}


@dataclass(frozen=True, slots=True)
class Gain:
    """A depth with what the model expects of it: `accept_length` tokens per verification, the bonus token included, and
    `speed_up` against the target alone."""

    steps: int
    accept_length: float
    speed_up: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`kind` of the head that was measured; `gains` by depth, as far as both acceptance and times were measured; `draft_hash`
    is "" where the report holds none."""

    kind: str
    device: str
    gains: tuple[Gain, ...]
    draft_hash: str = ""

    @property
    def best(self) -> Gain:
        return max(self.gains, key=lambda gain: gain.speed_up)


def read_report(path: Path) -> Measured:
    """The JSON that `ckpt-tools smoke --json` prints, or its result alone; raises NotFound and CkptError."""
    loaded = read_json(path)
    found = loaded["result"] if isinstance(loaded.get("result"), dict) else loaded
    try:
        if found["setting"].get("topk", 1) != 1:
            raise ValueError("it measured trees, and what is chosen here is the depth of a chain")
        for part, names in NEEDED.items():
            for name in names:
                found[part][name]
        return Measured(
            str(found["kind"]),
            str(found["setting"]["device"]),
            _gains(found["timing"], found["acceptance"]),
            str(found.get("draft_hash") or ""),
        )
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as problem:
        raise error(
            CkptError,
            "smoke-report",
            "this is no smoke report with times",
            where=str(path),
            expected="what `smoke --json` prints: timing.{draft,verify,target,overhead}, acceptance.by_position",
            actual=f"{type(problem).__name__}: {problem}",
            fix="run smoke with --topk 1, with --depths 1 or more, and with --steps as deep as you think of going",
        ) from problem


def _gains(timing: dict[str, Any], acceptance: dict[str, Any]) -> tuple[Gain, ...]:
    """`verify[n]` is a pass over n + 1 tokens, and a chain of k drafts verifies k + 1 tokens."""
    verify, by_position = _numbers(timing, "verify"), _numbers(acceptance, "by_position")
    draft, overhead, target = (_number(timing[name], name) for name in ("draft", "overhead", "target"))
    if any(share > 1 for share in by_position):
        raise ValueError("by_position holds a share above 1")
    gains = []
    for steps in range(1, min(len(by_position), len(verify) - 1) + 1):
        accepted = expected_accepted(by_position, steps)
        gains.append(Gain(steps, accepted + 1, speed_up(accepted, steps, draft, verify[steps], overhead, target)))
    if not gains:
        raise ValueError("no depth has both acceptance and times")
    return tuple(gains)


def _numbers(part: dict[str, Any], name: str) -> list[float]:
    if not isinstance(part[name], list):
        raise TypeError(f"{name} is no list")
    return [_number(value, name) for value in part[name]]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= float(value) < float("inf"):
        raise ValueError(f"{name} holds {value!r:.40}, which is no time and no share")
    return float(value)
