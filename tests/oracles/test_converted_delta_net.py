"""The converter's own output for gated delta nets and gated attention, judged by the real megatron-core 0.16.1 on CPU.

| family                                     | parameters                | main logits  | MTP logits             |
|--------------------------------------------|---------------------------|--------------|------------------------|
| qwen3_next (interleaved heads, experts)    | bit-equal in every layout | transformers | transformers' MtpModel |
| qwen3_5_text (flat projections, dense)     | bit-equal in every layout | transformers | transformers' MtpModel |
| qwen3_5_moe_text (flat, packed experts)    | bit-equal in every layout | transformers | transformers' MtpModel |

Megatron's own GatedDeltaNet runs (its plain torch delta rule), with its own factory that stores the joint projection in six
pieces and the filters in three, its gated attention and its norms of 1 + w, all under the names of its TransformerEngine
specs, whose modules stand-ins play. The layouts are TP1, TP2, EP2 and PP2 at the default strictness; logits are fp32 and
agree to 1e-5 of their scale. slime's other layout of the delta net is no layout of megatron-core and not judged here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.convert import Options
from ckpt_tools.families import gdn
from ckpt_tools.mapping.arrangement import Arrangement, Block
from ckpt_tools.mapping.rules import Rule

from .conversions import BF16, Case, Results, Saved, World, assert_agreed, assert_broken, assert_loaded
from .megatron.configs import tiny_config
from .megatron.hf import num_experts

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

CASES = {
    "qwen3_next": Case(tiny_config("qwen3_next")),
    "qwen3_next-bf16": Case(tiny_config("qwen3_next", linear_num_key_heads=4), dtype=BF16),
    "qwen3_5_text": Case(tiny_config("qwen3_5_text")),
    "qwen3_5_text-tied-bf16": Case(tiny_config("qwen3_5_text", tie_word_embeddings=True), dtype=BF16),
    "qwen3_5_moe_text": Case(tiny_config("qwen3_5_moe_text")),
}
SPARSE = [name for name, case in CASES.items() if num_experts(case.config)]
EXACT = [name for name, case in CASES.items() if case.dtype is not BF16]
# Megatron itself refuses a tied model with MTP layers on more than one pipeline stage.
STAGED = [name for name in CASES if "tied" not in name]


def gates_beside_queries(heads: int, groups: int, head_dim: int) -> Arrangement:
    """Hugging Face's [query; gate] per head, left as it is."""
    per_group = 2 * heads // groups * head_dim
    made: list[Block] = []
    for group in range(groups):
        kv = (group * head_dim, (group + 1) * head_dim)
        made += [Block(0, group * per_group, (group + 1) * per_group), Block(1, *kv), Block(2, *kv)]
    return Arrangement(tuple(made))


def heads_left_interleaved(part: int, heads: int, widths: tuple[int, ...]) -> list[Block]:
    """The fields of every head, left head by head."""
    return [Block(part, 0, heads * sum(widths))]


def unshifted_norm(*arguments: Any) -> tuple[Rule, ...]:
    """The delta net's norm stored as it is."""
    return tuple(replace(rule, shift=0.0) for rule in DELTA_NET(*arguments))


DELTA_NET = gdn.delta_net
# What is broken, the parameters it breaks, the heads whose logits show it.
FAULTS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "gates": ({"patches": ((gdn, "gated_qkv", gates_beside_queries),)}, r"linear_qkv", ("main", "mtp")),
    "heads": ({"patches": ((gdn, "_deal", heads_left_interleaved),)}, r"\.in_proj\.weight", ("main", "mtp")),
    "beta and alpha": (
        {"patches": ((gdn, "IN_PROJ", ("query", "key", "value", "z", "alpha", "beta")),)},
        r"\.in_proj\.weight",
        ("main", "mtp"),
    ),
    "norm": ({"patches": ((gdn, "delta_net", unshifted_norm),)}, r"out_norm", ("main", "mtp")),
    "halves": ({"options": Options(variants={"mtp_halves": "swapped"})}, r"eh_proj", ("mtp",)),
}
BROKEN_CASES = {name: replace(CASES["qwen3_next"], **change) for name, (change, _, _) in FAULTS.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("delta-net"), CASES | BROKEN_CASES).make()


@pytest.fixture(scope="module")
def one_rank(world: World) -> Results:
    steps = [(f"load {name}", world.step(name, "load")) for name in world.cases]
    steps += [(f"logits {name}", world.step(name, "logits")) for name in [*EXACT, *FAULTS]]
    return world.judge(steps)


@pytest.fixture(scope="module")
def saved(world: World) -> Saved:
    return Saved.of(world, CASES, tp=2)


@pytest.fixture(scope="module")
def two_expert_ranks(world: World) -> Results:
    return world.judge(((name, world.step(name, "load")) for name in SPARSE), ep=2)


@pytest.fixture(scope="module")
def two_stages(world: World) -> Results:
    return world.judge(((name, world.step(name, "load", first_stage_layers=1)) for name in STAGED), pp=2)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_loads_every_parameter(one_rank: Results, name: str) -> None:
    assert_loaded(one_rank[f"load {name}"])


@pytest.mark.parametrize("name", SPARSE)
def test_two_expert_ranks_load_every_parameter(two_expert_ranks: Results, name: str) -> None:
    assert_loaded(two_expert_ranks[name])


@pytest.mark.parametrize("name", STAGED)
def test_two_stages_load_every_parameter(two_stages: Results, name: str) -> None:
    assert_loaded(two_stages[name])


@pytest.mark.parametrize("name", EXACT)
def test_logits_agree(one_rank: Results, name: str) -> None:
    assert_agreed(one_rank[f"logits {name}"], mtp=1)


@pytest.mark.parametrize("name", CASES)
def test_two_tensor_ranks_load_and_what_they_save_converts_back(saved: Saved, tmp_path: Path, name: str) -> None:
    saved.assert_converts_back(name, tmp_path / "hf")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_converter_is_noticed(world: World, one_rank: Results, fault: str) -> None:
    _, pattern, heads = FAULTS[fault]
    broken = {name for name in world.parameters(fault) if re.search(pattern, name)}
    assert {mismatch["parameter"] for mismatch in one_rank[f"load {fault}"]["mismatches"]} == broken
    assert_broken(one_rank[f"logits {fault}"], *heads)
