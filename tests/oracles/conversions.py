"""Conversions to be judged by real Megatron: a tiny folder, converted, and the steps that load it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.convert import Options, convert

from ..checkpoints import assert_same, hf_tensors
from .megatron.hf import HfConfig, read_config, read_tensors
from .megatron.reference import expected_parameters
from .megatron.run import run_job
from .megatron.tiny import tiny_tensors, write_folder

Step = dict[str, Any]
Results = dict[str, dict[str, Any]]
BF16 = torch.bfloat16
# Seen: at most 2e-6 of about 3, the rounding of fp32 sums in another order. What is broken on purpose is off by > 1e-2.
TOLERANCE = 1e-5
BROKEN = 1e-2


@dataclass(frozen=True)
class Case:
    """One conversion: of the folder that `config` (or `make`) describes, with `options`, into a model of `padded_vocab`.

    `patches` replace attributes of the converter's modules during the conversion: (module, name, value).
    """

    config: HfConfig
    options: Options = field(default_factory=Options)
    dtype: torch.dtype = torch.float32
    padded_vocab: int = 128
    make: Callable[[Path], Path] | None = None
    patches: tuple[tuple[Any, str, Any], ...] = ()


@dataclass(frozen=True)
class World:
    """All cases, made and converted below one folder; `converted_to` names the folder that steps work on."""

    base: Path
    cases: dict[str, Case]
    converted_to: str = "converted"

    def make(self) -> World:
        """Write every folder and convert it."""
        for name, case in self.cases.items():
            if case.make:
                case.make(self.hf(name))
            else:
                write_folder(self.hf(name), case.config, tiny_tensors(case.config, dtype=case.dtype))
            with pytest.MonkeyPatch.context() as patch:
                for target, attribute, value in case.patches:
                    patch.setattr(target, attribute, value)
                convert(self.hf(name), self.converted(name), case.options)
        return self

    def hf(self, name: str) -> Path:
        return self.base / "hf" / name

    def converted(self, name: str) -> Path:
        return self.base / self.converted_to / name

    def iteration(self, name: str) -> Path:
        """The directory that Megatron itself reads or writes."""
        return self.converted(name) / "release"

    def parameters(self, name: str) -> set[str]:
        """The names of all parameters of a case's one-rank model."""
        config, tensors = read_config(self.hf(name)), read_tensors(self.hf(name))
        return set(expected_parameters(config, tensors, self.cases[name].padded_vocab))

    def step(self, name: str, kind: str, **more: Any) -> Step:
        """A step on a converted case."""
        case = self.cases[name]
        return {
            "kind": kind,
            "hf": str(self.hf(name)),
            "dir": str(self.iteration(name)),
            "dtype": "bf16" if case.dtype is BF16 else "fp32",
            "padded_vocab": case.padded_vocab,
            **more,
        }

    def judge(self, steps: Iterable[tuple[str, Step]], **layout: int) -> Results:
        """The results of named steps, all run in one job under a layout."""
        named = dict(steps)
        return dict(zip(named, run_job({**layout, "steps": list(named.values())})["steps"], strict=True))


@dataclass(frozen=True)
class Saved:
    """What real Megatron loaded from the converter's output, and the world of what it saved of that."""

    results: Results
    world: World

    @classmethod
    def of(cls, world: World, names: Iterable[str], **layout: int) -> Saved:
        """Load and save under a layout, in one job."""
        again = replace(world, converted_to="saved")
        steps = [(f"load {name}", world.step(name, "load")) for name in names]
        steps += [(f"save {name}", again.step(name, "save", content_metadata={})) for name in names]
        return cls(world.judge(steps, **layout), again)

    def assert_converts_back(self, name: str, out: Path) -> None:
        """It was loaded whole, and what was saved of it converts to the original's bits."""
        assert_loaded(self.results[f"load {name}"])
        source = self.world.hf(name)
        convert(self.world.iteration(name), out, Options(hf_config=source))
        assert_same(hf_tensors(out), hf_tensors(source))


def assert_loaded(result: dict[str, Any]) -> None:
    """Every parameter was asked for, found and equal bit by bit, and Megatron will not permute QKV."""
    assert result["equal"], (result["mismatches"], result["uncovered"])
    assert result["common"]["checkpoint_version"] == 3.0


def assert_agreed(result: dict[str, Any], mtp: int, *, rotary: bool = True) -> None:
    """Main and MTP logits agree with Hugging Face's, and so do the rotary frequencies where there are any."""
    assert ("mtp" in result) == bool(mtp)
    for head, count in (("main", 1), ("mtp", mtp)):
        if count:
            assert result[head]["heads"] == count
            assert result[head]["scale"] > 1
            assert result[head]["max_abs_difference"] <= TOLERANCE * result[head]["scale"]
    assert ("rotary_relative_difference" in result) == rotary
    assert result.get("rotary_relative_difference", 0.0) <= 1e-6


def assert_broken(result: dict[str, Any], *heads: str) -> None:
    """The logits of exactly these heads are far off."""
    for head in ("main", "mtp"):
        relative = result[head]["max_abs_difference"] / result[head]["scale"]
        assert relative > BROKEN if head in heads else relative <= TOLERANCE
