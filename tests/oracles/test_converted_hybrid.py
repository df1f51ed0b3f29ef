"""The converter's own output for Nemotron-H, judged by the real megatron-core 0.16.1 on CPU.

| family                                          | parameters             | main logits  | MTP logits                   |
|-------------------------------------------------|------------------------|--------------|------------------------------|
| nemotron_h (Mamba, attention, MLP, experts)     | bit-equal, TP1 and TP2 | transformers | stated in test_nemotron_h.py |

The model is Megatron's MambaModel of its own spec with Mamba's CUDA kernels restated in plain torch (mamba_kernels.py):
MambaMixer cuts its joint projection and filters itself and loads them in the pieces that it stores. This version of
Megatron has no hybrid MTP layers and neither has transformers, so those rest on an independent statement of every tensor
(tests/convert/test_nemotron_h.py). Logits are fp32 and agree to 1e-5 of their scale.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools.families import nemotron_h
from ckpt_tools.mapping.arrangement import Arrangement, Block

from .conversions import Case, Results, Saved, World, assert_agreed, assert_loaded
from .megatron.configs import tiny_config

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

CASES = {
    "nemotron_h": Case(tiny_config("nemotron_h")),
    "super": Case(tiny_config("nemotron_h", num_nextn_predict_layers=0)),
    "nano": Case(
        tiny_config("nemotron_h", moe_latent_size=None, hybrid_override_pattern="M*ME", num_nextn_predict_layers=0)
    ),
    "dense": Case(tiny_config("nemotron_h", hybrid_override_pattern="M-*-", num_nextn_predict_layers=0)),
}
WITHOUT_MTP = [name for name, case in CASES.items() if not case.config["num_nextn_predict_layers"]]


def flat_qkv(heads: int, groups: int, head_dim: int) -> Arrangement:
    """All of q, then all of k, then all of v."""
    return Arrangement(tuple(Block(i, 0, n * head_dim) for i, n in enumerate((heads, groups, groups))))


FAULTS = {
    "joint projection": ((nemotron_h, "IN_PROJ", ("x", "z", "B", "C", "dt")), r"mixer\.in_proj\.weight"),
    "filters": ((nemotron_h, "CONV", ("x", "C", "B")), r"mixer\.conv1d"),
    "qkv": ((nemotron_h, "grouped_qkv", flat_qkv), r"linear_qkv"),
}
BROKEN_CASES = {name: replace(CASES["nemotron_h"], patches=(patch,)) for name, (patch, _) in FAULTS.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("hybrid"), CASES | BROKEN_CASES).make()


@pytest.fixture(scope="module")
def one_rank(world: World) -> Results:
    steps = [(f"load {name}", world.step(name, "load")) for name in world.cases]
    return world.judge([*steps, *((f"logits {name}", world.step(name, "logits")) for name in world.cases)])


@pytest.fixture(scope="module")
def saved(world: World) -> Saved:
    return Saved.of(world, WITHOUT_MTP, tp=2)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_loads_every_parameter(one_rank: Results, name: str) -> None:
    assert_loaded(one_rank[f"load {name}"])


@pytest.mark.parametrize("name", CASES)
def test_logits_agree(one_rank: Results, name: str) -> None:
    assert_agreed(one_rank[f"logits {name}"], mtp=0, rotary=False)


@pytest.mark.parametrize("name", WITHOUT_MTP)
def test_two_tensor_ranks_load_and_what_they_save_converts_back(saved: Saved, tmp_path: Path, name: str) -> None:
    saved.assert_converts_back(name, tmp_path / "hf")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_converter_is_noticed(world: World, one_rank: Results, fault: str) -> None:
    broken = {name for name in world.parameters(fault) if re.search(FAULTS[fault][1], name)}
    assert {mismatch["parameter"] for mismatch in one_rank[f"load {fault}"]["mismatches"]} == broken
    main = one_rank[f"logits {fault}"]["main"]
    assert main["max_abs_difference"] / main["scale"] > 1e-2
