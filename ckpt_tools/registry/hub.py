"""A registry in a Hub repository: read at its newest commit, changed by commits on top of it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import CkptError, UsageProblem, error
from ..refs import COMMIT, HUB_PREFIX, split
from ..refs.commits import Changes, NotCommitted, commit, latest
from .base import Decide
from .manifest import SUFFIX

PATIENCE = 60.0  # seconds; a commit takes about one
PAUSES = (0.1, 1.5)  # seconds between tries, drawn so that two writers do not keep in step


@dataclass(frozen=True, slots=True)
class Repository:
    """`ref` is org/name[@revision], a repository that exists."""

    ref: str

    @property
    def where(self) -> str:
        return HUB_PREFIX + self.ref.removeprefix(HUB_PREFIX)

    def read(self, may_be_new: bool = False) -> Path:
        return latest(self.where, f"*{SUFFIX}")

    def change(self, decide: Decide, message: str) -> None:
        """Whoever finds that the revision has moved looks again: what was decided may not be right any more."""
        self._check_branch()
        sent: Changes = {}
        until = time.monotonic() + PATIENCE
        while True:
            folder = self.read()
            if sent and _landed(folder, sent):  # the answer to the last try was lost
                return
            sent = decide(folder)
            try:
                commit(self.where, folder, sent, message)
                return
            except NotCommitted as problem:
                if time.monotonic() > until:
                    raise self._busy(problem) from problem
            time.sleep(random.uniform(*PAUSES))

    def _check_branch(self) -> None:
        revision = split(self.where)[1] or ""
        if COMMIT.fullmatch(revision):
            raise error(
                UsageProblem,
                "registry-fixed",
                "a commit cannot be changed",
                where=self.where,
                expected="a branch",
                actual=revision,
                fix="leave the revision out, or name a branch",
            )

    def _busy(self, problem: NotCommitted) -> CkptError:
        return error(
            CkptError,
            "registry-busy",
            "the Hub takes no commit to the registry",
            where=self.where,
            expected=f"a commit within {PATIENCE:g} s",
            actual=str(problem),
            fix="run the same command again",
        )


def _landed(folder: Path, sent: Changes) -> bool:
    """Whether the files are as they were sent."""
    there = {name: folder / name for name in sent}
    return all(
        not there[name].exists() if text is None else there[name].is_file() and there[name].read_text("utf-8") == text
        for name, text in sent.items()
    )
