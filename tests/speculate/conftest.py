"""SmolLM2-135M-Instruct, made once per checkout, and tiny clockwork models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from get_smollm2 import get_smollm2
from mimo_form import mimo_form

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.prompts import Texts
from ckpt_tools.speculate.target import Target, load_target
from tests.conftest import Tiny

from . import worlds

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets"
BUILD = Path(os.environ.get("CKPT_TOOLS_BUILD", ROOT / "build"))
MTP, EAGLE, EAGLE3 = (ASSETS / f"smollm2-{kind}" for kind in ("mtp", "eagle", "eagle3"))


@dataclass
class SmolLM2:
    """The real target in its two forms; loaded once each."""

    folder: Path
    mimo: Path

    @cached_property
    def target(self) -> Target:
        return load_target(self.folder)

    @cached_property
    def mimo_target(self) -> Target:
        return load_target(self.mimo)

    def of(self, kind: str) -> Target:
        return self.mimo_target if kind == "mtp" else self.target

    def head(self, kind: str) -> Head:
        return build_head(open_draft(ASSETS / f"smollm2-{kind}"), self.of(kind))

    @cached_property
    def prompts(self) -> list[list[int]]:
        """The held-out prompts through the chat template."""
        texts = Texts(self.target)
        messages = json.loads((ASSETS / "smollm2-heldout-prompts.json").read_text())
        return [texts.prompt(message).ids for message in messages]


def _made(name: str, make: Callable[[Path], object]) -> Path:
    """BUILD/name, made by whoever comes first."""
    BUILD.mkdir(exist_ok=True)
    with FileLock(BUILD / f".{name}.lock"):
        if not (BUILD / name / "config.json").is_file():
            make(BUILD / f"{name}.partial")
            (BUILD / f"{name}.partial").rename(BUILD / name)
    return BUILD / name


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2:
    folder = _made("smollm2", get_smollm2)
    return SmolLM2(folder, _made("mimo-form", lambda out: mimo_form(folder, MTP, out)))


Clockwork = Callable[..., Path]


@pytest.fixture
def clockwork(tiny: Tiny) -> Clockwork:
    """`clockwork(family, noise=..., **options of make_tiny)`: a tiny model that says one fixed token after every other."""

    def made(family: str, noise: float = 0.0, **options: object) -> Path:
        sizes = {"layers": 7, "hidden": 64, "vocab": 40, "dtype": "float32", **options}
        return worlds.clockwork(tiny(family, **sizes), noise)

    return made


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Machines differ; one thread makes sums come out in one order."""
    torch.set_num_threads(1)
