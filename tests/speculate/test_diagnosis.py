"""Damaged heads of the real SmolLM2: every damage has its own finding, and a whole head has none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import Finding
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.diagnosis import diagnose
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.loss import Rows, judge, rows_of, vocabulary
from ckpt_tools.speculate.results import HeadLoss
from ckpt_tools.speculate.target import Target, of_model
from ckpt_tools.speculate.tensors import read_head

from .conftest import ASSETS, SmolLM2

TEXT = """A lighthouse is a tower with a strong lamp at the top. It warns ships of rocks near the coast and helps sailors
to find their way at night. In the past, a keeper lived in the tower, lit the lamp every evening and kept it clean. Today
most of the lamps are electric, and they are switched on and off by a computer. Some people still like to visit the old
towers, because they have a good view of the sea and tell a story about the people who worked there. The first lamps were
open fires of wood or coal. Later on, oil was burned behind large pieces of glass, which collected the light and sent it
far out over the water. A lens of this kind was invented in France in the nineteenth century, and it made the light of a
small flame visible from a distance of more than thirty kilometres. Each tower had its own pattern of flashes, so that the
crew of a ship could look it up in a book and know where they were. When there was fog, the keeper sounded a horn or rang
a bell. It was a lonely life, and the winter storms were dangerous. The keeper wrote down the weather, the ships that went
by and the amount of oil that was used, and a boat brought food, letters and new books every few weeks."""
GROUPS, SIZE = 3, 64
Tensors = dict[str, torch.Tensor]


@dataclass
class Bench:
    """One kind of head on its target, with the rows of a text."""

    kind: str
    target: Target
    head: Head
    tensors: Tensors
    rows: Sequence[Rows]

    def loss(self) -> HeadLoss:
        return judge(self.head, self.rows).summary(vocabulary(self.head))

    def findings(self, damage: Callable[[Tensors], None]) -> list[Finding]:
        damaged = {name: tensor.clone() for name, tensor in self.tensors.items()}
        damage(damaged)
        self.head.load(damaged)  # type: ignore[operator]
        try:
            spec = open_draft(ASSETS / f"smollm2-{self.kind}")
            return diagnose(spec, self.head, damaged, self.rows, self.loss())
        finally:
            self.head.load(self.tensors)  # type: ignore[operator]


def text_rows(smollm2: SmolLM2, target: Target, head: Head) -> list[Rows]:
    from ckpt_tools.speculate.prompts import Texts

    ids = Texts(smollm2.target).tokenizer(TEXT.replace("\n", " "))["input_ids"]
    rows = rows_of(target, head.boundaries, ids[:8], ids[8:])
    assert rows is not None
    return [rows]


@pytest.fixture(scope="session")
def bench(smollm2: SmolLM2) -> Callable[[str], Bench]:
    @cache
    def made(kind: str) -> Bench:
        target, head = smollm2.of(kind), smollm2.head(kind)
        tensors = read_head(open_draft(ASSETS / f"smollm2-{kind}"), torch.float32)
        return Bench(kind, target, head, tensors, text_rows(smollm2, target, head))

    return made


def joint(tensors: Tensors) -> str:
    return next(name for name in tensors if name.endswith(("fc.weight", "input_proj.weight")))


def exchanged(tensors: Tensors) -> None:
    tensors[joint(tensors)] = torch.cat(tensors[joint(tensors)].chunk(2, 1)[::-1], 1)


def reversed_features(tensors: Tensors) -> None:
    tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(3, 1)[::-1], 1)


def attention_names(tensors: Tensors) -> list[list[str]]:
    found = [[n for n in tensors if n.endswith(f"{p}_proj.{kind}")] for kind in ("weight", "bias") for p in "qkv"]
    return [[names[0] for names in three] for three in (found[:3], found[3:]) if three[0]]


def stacked_head_major(tensors: Tensors) -> None:
    """q, k and v stacked, and then read as Megatron reads them: group by group."""
    for names in attention_names(tensors):
        groups = torch.cat([tensors[name] for name in names]).split(5 * SIZE)
        for name, (start, stop) in zip(names, ((0, 3), (3, 4), (4, 5)), strict=True):
            tensors[name] = torch.cat([group[start * SIZE : stop * SIZE] for group in groups])


def cut_head_major(tensors: Tensors) -> None:
    """Megatron's groups, and then cut as if q, k and v stood one after another."""
    for names in attention_names(tensors):
        q, k, v = ([*tensors[name].split(len(tensors[name]) // GROUPS)] for name in names)
        whole = torch.cat([part for group in zip(q, k, v, strict=True) for part in group])
        tensors |= dict(zip(names, whole.split([9 * SIZE, 3 * SIZE, 3 * SIZE]), strict=True))


def shuffled(tensors: Tensors) -> None:
    own = torch.arange(len(tensors["d2t"]))
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(0))
    tensors["d2t"] = (tensors["d2t"] + own)[order] - own


def fresh(tensors: Tensors) -> None:
    """What an initialised module holds."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            tensors[name] = torch.randn(tensor.shape, generator=generator) * 0.02
        elif tensor.is_floating_point():
            tensors[name] = torch.full(tensor.shape, 1.0 if "norm" in name else 0.0)


DAMAGES: list[tuple[str, Callable[[Tensors], None], str]] = [
    ("mtp", exchanged, "halves-swapped"),
    ("eagle3", reversed_features, "features-swapped"),
    ("eagle3", shuffled, "d2t-shuffled"),
    ("mtp", stacked_head_major, "qkv-stacked"),
    ("eagle3", cut_head_major, "qkv-stacked"),
    ("mtp", fresh, "head-like-random"),
]
MORE = [
    ("eagle", exchanged, "halves-swapped"),
    *((kind, stacked_head_major, "qkv-stacked") for kind in ("eagle", "eagle3")),
    *((kind, cut_head_major, "qkv-stacked") for kind in ("mtp", "eagle")),
    *((kind, fresh, "head-like-random") for kind in ("eagle", "eagle3")),
]
# Minutes on a slow machine, and the same code paths.
DAMAGES += [pytest.param(*case, marks=pytest.mark.huge) for case in MORE]  # type: ignore[arg-type, misc]
KINDS = ["mtp", pytest.param("eagle", marks=pytest.mark.huge), "eagle3"]


@pytest.mark.real
@pytest.mark.parametrize(("kind", "damage", "code"), DAMAGES)
def test_a_damage_has_its_finding(
    kind: str, damage: Callable[[Tensors], None], code: str, bench: Callable[[str], Bench]
) -> None:
    assert [finding.code for finding in bench(kind).findings(damage)] == [code]


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_head_has_none_and_predicts_far_better_than_guessing(kind: str, bench: Callable[[str], Bench]) -> None:
    """C4: mean cross-entropy clearly below ln(V)."""
    assert bench(kind).findings(lambda tensors: None) == []
    loss = bench(kind).loss()
    assert loss.nats < 0.6 * loss.uniform
    assert loss.accuracy > 0.1  # guessing: 0.00002


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_another_target_of_the_same_shape(kind: str, bench: Callable[[str], Bench], smollm2: SmolLM2) -> None:
    """The other target is SmolLM2 with its channels in another order: it says the very same, its hidden states differ."""
    other = of_model(channels_moved(bench(kind).target.model), bench(kind).target.facts)
    spec = open_draft(ASSETS / f"smollm2-{kind}")
    head = build_head(spec, other)
    rows = text_rows(smollm2, other, head)
    found = diagnose(spec, head, bench(kind).tensors, rows, judge(head, rows).summary(vocabulary(head)))
    assert [finding.code for finding in found] == ["head-of-another-target"]


@torch.no_grad()
def channels_moved(model: Any) -> Any:
    order = torch.randperm(576, generator=torch.Generator().manual_seed(0))
    moved = copy.deepcopy(model)
    for name, parameter in moved.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "norm.weight")):
            parameter.copy_(parameter[order])
        elif parameter.dim() == 2:
            parameter.copy_(parameter[:, order])
    ids = torch.tensor([[5, 99, 1234, 77]])
    torch.testing.assert_close(moved(ids).logits, model(ids).logits, atol=2e-3, rtol=0)
    return moved
