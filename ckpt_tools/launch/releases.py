"""What every release of SGLang knows: its flags, and the keys under which it counts drafts (scripts/make_sglang_flags.py)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("sglang_flags.json")
LATEST = "0.5.23"
# Flags that a later release calls by another name (server_args.py of the releases on both sides).
RENAMED = {
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "nsa-decode-backend": "dsa-decode-backend",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
}
# What slime adds beside SGLang's own flags (slime/backends/sglang_utils/arguments.py).
SLIMES_OWN = frozenset(("config", "router-ip", "router-port", "router-request-timeout-secs", "server-concurrency"))
# What slime sets itself: it does not take these with its prefix (same file).
SLIME_SETS = frozenset(
    (
        "model-path",
        "trust-remote-code",
        "random-seed",
        "enable-memory-saver",
        "tp-size",
        "tensor-parallel-size",
        "port",
        "nnodes",
        "node-rank",
        "dist-init-addr",
        "gpu-id-step",
        "base-gpu-id",
        "nccl-port",
        "skip-server-warmup",
        "enable-return-routed-experts",
    )
)
# What slime counts accepted and proposed drafts by (slime/utils/types.py).
SLIME_METRICS = ("spec_accept_token_num", "spec_draft_token_num")
SLIME_LENGTH = "spec_verify_ct"


@dataclass(frozen=True, slots=True)
class Release:
    """`version` is the release whose table is used; `asked` what the user named."""

    asked: str
    version: str
    flags: frozenset[str]
    metrics: frozenset[str]

    @property
    def exact(self) -> bool:
        return self.asked == self.version

    def successor(self, flag: str) -> str:
        """What a flag of other releases is called in this one: a renaming that is known, or ""."""
        for older, newer in RENAMED.items():
            if flag in (older, newer) and (other := newer if flag == older else older) in self.flags:
                return other
        return ""

    def near(self, flag: str) -> str:
        return next(iter(get_close_matches(flag, self.flags, n=1, cutoff=0.8)), "")


@cache
def _table() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def versions() -> tuple[str, ...]:
    """Releases with a table, the oldest first."""
    return tuple(_table()["versions"])


def key(version: str) -> tuple[int, ...]:
    """0.5.15.post1 as numbers, for comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def ever_known(flag: str) -> bool:
    """Whether any release with a table has this flag."""
    return flag in _table()["flags"]


def release(version: str = LATEST) -> Release:
    """The table of a release, or of the last one before it; raises ValueError for a version before the first table."""
    every = versions()
    numbers = [i for i, each in enumerate(every) if key(each) <= key(version)]
    if not key(version) or not numbers:
        raise ValueError(f"no table for SGLang {version!r}; tables are there from {every[0]} to {every[-1]}")
    at = numbers[-1]
    flags, metrics = (
        frozenset(name for name, there in _table()[kind].items() if there[at] == "1") for kind in ("flags", "metrics")
    )
    return Release(version, every[at], flags, metrics)
