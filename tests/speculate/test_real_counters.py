"""SmolLM2 with its three trained heads: texts equal plain greedy decoding, counters equal what SGLang counts.

The table was measured by an independent simulator; for the first three prompts the real sglang 0.5.23 Engine gave the same
figures (TRAINED: verifications / accepted / proposed).
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.tensors import read_head

from .conftest import ASSETS, SmolLM2

pytestmark = pytest.mark.real
KINDS = ["mtp", "eagle3", "eagle"]
END = {2}  # <|im_end|>
# The first prompt, 24 tokens: (verifications, accepted, histogram); those of EAGLE and EAGLE-3 are the
# simulator's, that of MTP is of our own run, whose 20 prompts together give TABLE.
FIRST = {"mtp": (17, 6, [13, 3, 0, 1]), "eagle3": (17, 6, [14, 1, 1, 1]), "eagle": (20, 3, [18, 1, 1, 0])}
ENGINE = {"mtp": (132, 60, 396), "eagle3": (123, 68, 369), "eagle": (148, 42, 444)}
TABLE = {
    "mtp": (838, 372, 2514, (0.331, 0.081, 0.032), 1.444),
    "eagle3": (805, 407, 2415, (0.353, 0.111, 0.042), 1.506),
    "eagle": (932, 275, 2796, (0.221, 0.056, 0.018), 1.295),
}
DAMAGED = {"mtp": (1202, 2, 3606), "eagle3": (1170, 36, 3510)}  # halves or features in reversed order


@pytest.fixture(scope="module")
def alone(smollm2: SmolLM2) -> object:
    """`alone(number, new)`: what the target says, decoded once; both of its forms compute the same."""

    @cache
    def decoded(number: int, new: int) -> tuple[int, ...]:
        return tuple(plain(smollm2.target, smollm2.prompts[number], Limits(new, END)).tokens)

    return decoded


def decode(smollm2: SmolLM2, kind: str, head: Head, alone: object, prompts: int, new: int) -> Counters:
    counters = Counters(3)
    for number, prompt in enumerate(smollm2.prompts[:prompts]):
        found = speculative(smollm2.of(kind), head, prompt, Limits(new, END), counters)
        assert tuple(found.tokens) == alone(number, new), number  # type: ignore[operator]
    return counters


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_prompt(kind: str, smollm2: SmolLM2, alone: object) -> None:
    counters = decode(smollm2, kind, smollm2.head(kind), alone, 1, 24)
    assert (counters.verifications, counters.accepted, counters.histogram) == FIRST[kind]


@pytest.mark.huge
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_counts_the_same_on_three_prompts(kind: str, smollm2: SmolLM2, alone: object) -> None:
    counters = decode(smollm2, kind, smollm2.head(kind), alone, 3, 64)
    assert (counters.verifications, counters.accepted, counters.proposed) == ENGINE[kind]


@pytest.mark.huge
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_table(kind: str, smollm2: SmolLM2, alone: object) -> None:
    counters = decode(smollm2, kind, smollm2.head(kind), alone, 20, 64)
    positions, length = TABLE[kind][3:]
    assert (counters.verifications, counters.accepted, counters.proposed) == TABLE[kind][:3]
    assert [round(share, 3) for share in counters.by_position] == list(positions)
    assert round(counters.accept_length, 3) == length
    assert counters.tokens == 1224


@pytest.mark.huge
@pytest.mark.parametrize("kind", list(DAMAGED))
def test_a_damaged_head_is_lossless_and_useless(kind: str, smollm2: SmolLM2, alone: object) -> None:
    head = build_head(open_draft(ASSETS / f"smollm2-{kind}"), smollm2.of(kind))
    tensors = read_head(open_draft(ASSETS / f"smollm2-{kind}"), torch.float32)
    name = next(name for name in tensors if name.endswith(("fc.weight", "input_proj.weight")))
    parts = tensors[name].chunk(3 if kind == "eagle3" else 2, 1)
    head.load({**tensors, name: torch.cat(parts[::-1], 1)})  # type: ignore[operator]
    counters = decode(smollm2, kind, head, alone, 20, 64)
    assert (counters.verifications, counters.accepted, counters.proposed) == DAMAGED[kind]
