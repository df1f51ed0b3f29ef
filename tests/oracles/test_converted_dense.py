"""The converter's own output for dense families, judged by the real megatron-core 0.16.1 on CPU.

| family               | parameters                | main logits       | MTP logits                                     |
|----------------------|---------------------------|-------------------|------------------------------------------------|
| llama, tied or not   | bit-equal in every layout | transformers      | -                                              |
| qwen2                | bit-equal in every layout | transformers      | -                                              |
| qwen3                | bit-equal in every layout | transformers      | -                                              |
| mimo, 1 and 2 layers | bit-equal in every layout | Qwen2 body        | its layers in MiMo's order, stated in forward  |

The layouts are TP1, TP2, PP2 even and uneven both ways, at Megatron's default strictness, and TP1 under the names of its
TransformerEngine specs; logits are fp32 and agree to 1e-5 of their scale. Checkpoints that real training iterations saved
under TP2 x PP2 convert back to the original bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_tiny import make_tiny

from ckpt_tools.convert import Options, convert
from ckpt_tools.families import blocks
from ckpt_tools.mapping.arrangement import Arrangement, Block

from ..checkpoints import assert_same, hf_tensors, tree
from .conversions import BF16, Case, Results, Step, World, assert_agreed, assert_broken, assert_loaded
from .megatron.configs import LLAMA3, TRAINING, tiny_config
from .megatron.hf import mtp_layers, read_config
from .megatron.run import run_job

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

PER_LAYER, STACKED = Options(layout="per-layer"), Options(layout="stacked")
CASES = {
    "llama": Case(tiny_config("llama")),
    "llama-per-layer-bf16": Case(tiny_config("llama"), PER_LAYER, BF16),
    "llama3-tied": Case(tiny_config("llama", tie_word_embeddings=True, **LLAMA3), PER_LAYER),
    "llama-tied-bf16": Case(tiny_config("llama", tie_word_embeddings=True), STACKED, BF16),
    "qwen2-unpadded": Case(tiny_config("qwen2"), Options(make_vocab_size_divisible_by=1), padded_vocab=96),
    "qwen2-tied-bf16": Case(tiny_config("qwen2", tie_word_embeddings=True), PER_LAYER, BF16),
    "qwen3-padded-for-tp2": Case(tiny_config("qwen3"), replace(PER_LAYER, tp=2), padded_vocab=256),
    "qwen3-padded-otherwise": Case(tiny_config("qwen3"), STACKED, BF16, padded_vocab=256),
    "mimo": Case(tiny_config("mimo", rope_theta=640000.0), STACKED),
    "mimo2": Case(tiny_config("mimo", num_nextn_predict_layers=2), PER_LAYER),
    "mimo2-release-bf16": Case(
        {},
        dtype=BF16,
        make=lambda folder: make_tiny("mimo", folder, mtp=2, shards=3, config_style="v5"),
    ),
}
EXACT = [name for name, case in CASES.items() if case.dtype is not BF16]


def halves_as_they_are(columns: int) -> Arrangement:
    """The joint projection without the exchange."""
    return Arrangement((Block(0, 0, columns),), axis=1)


def up_over_gate(extent: int) -> Arrangement:
    """[up; gate]."""
    return Arrangement((Block(1, 0, extent), Block(0, 0, extent)), cuts=(extent,))


def flat_qkv(heads: int, groups: int, head_dim: int) -> Arrangement:
    """All of q, then all of k, then all of v."""
    return Arrangement(tuple(Block(i, 0, n * head_dim) for i, n in enumerate((heads, groups, groups))))


FAULTS = {
    "halves": ("swapped_halves", halves_as_they_are, ("eh_proj.weight",), ("mtp",)),
    "gate": ("gate_over_up", up_over_gate, ("linear_fc1.weight",), ("main", "mtp")),
    "qkv": ("grouped_qkv", flat_qkv, ("linear_qkv.weight", "linear_qkv.bias"), ("main", "mtp")),
}
BROKEN_CASES = {
    name: replace(CASES["mimo"], patches=((blocks, attribute, value),))
    for name, (attribute, value, _, _) in FAULTS.items()
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("dense"), CASES | BROKEN_CASES).make()


@pytest.fixture(scope="module")
def one_rank(world: World) -> Results:
    steps = [(f"load {name}", world.step(name, "load")) for name in world.cases]
    steps += [(f"te {name}", world.step(name, "load", te_names=True)) for name in CASES]
    steps += [(f"logits {name}", world.step(name, "logits")) for name in [*EXACT, *FAULTS]]
    return world.judge(steps)


@pytest.fixture(scope="module")
def two_tensor_ranks(world: World) -> Results:
    return world.judge(((name, world.step(name, "load")) for name in [*CASES, *FAULTS]), tp=2)


@pytest.fixture(scope="module")
def two_stages(world: World) -> Results:
    def steps() -> Iterator[tuple[str, Step]]:
        for name in CASES:
            for first in (None, 1, 3):
                yield f"{name} {first}", world.step(name, "load", first_stage_layers=first)

    return world.judge(steps(), pp=2)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_loads_every_parameter(one_rank: Results, name: str) -> None:
    assert_loaded(one_rank[f"load {name}"])


@pytest.mark.parametrize("name", CASES)
def test_every_name_that_transformer_engine_asks_for_is_there(one_rank: Results, name: str) -> None:
    assert_loaded(one_rank[f"te {name}"])


@pytest.mark.parametrize("name", CASES)
def test_two_tensor_ranks_load_every_parameter(two_tensor_ranks: Results, name: str) -> None:
    assert_loaded(two_tensor_ranks[name])


@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize("name", CASES)
def test_two_stages_load_every_parameter(two_stages: Results, name: str, first: int | None) -> None:
    assert_loaded(two_stages[f"{name} {first}"])


@pytest.mark.parametrize("name", EXACT)
def test_logits_agree(world: World, one_rank: Results, name: str) -> None:
    assert_agreed(one_rank[f"logits {name}"], mtp_layers(read_config(world.hf(name))))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_converter_is_noticed(world: World, one_rank: Results, two_tensor_ranks: Results, fault: str) -> None:
    _, _, endings, heads = FAULTS[fault]
    broken = {name for name in world.parameters(fault) if name.endswith(endings)}
    for result in (one_rank[f"load {fault}"], two_tensor_ranks[fault]):
        assert {mismatch["parameter"] for mismatch in result["mismatches"]} == broken
    assert_broken(one_rank[f"logits {fault}"], *heads)


TRAINED = {
    **{f"mimo-{kind}": ("mimo2-release-bf16", {"dtype": "bf16", **step}) for kind, step in TRAINING.items()},
    "qwen3-adam-fp32": ("qwen3-padded-for-tp2", TRAINING["adam"]),
    "tied-distributed": ("llama-tied-bf16", {"dtype": "bf16", **TRAINING["distributed"]}),
}


@pytest.fixture(scope="module")
def trained(world: World) -> dict[str, Path]:
    """What real training iterations of Megatron under TP2 x PP2 leave behind, with optimizer, RNG and rerun state."""
    roots = {name: world.base / "trained" / name for name in TRAINED}
    steps: list[dict[str, Any]] = []
    for name, (source, training) in TRAINED.items():
        directory = roots[name] / "iter_0000007"
        steps.append(
            {"kind": "save", "hf": str(world.hf(source)), "dir": str(directory), "padded_vocab": 128, **training}
        )
    run_job({"tp": 2, "pp": 2, "steps": steps})
    for root in roots.values():
        (root / "latest_checkpointed_iteration.txt").write_text("7")
    return roots


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_iteration_converts_back_to_the_bits(
    world: World, trained: dict[str, Path], tmp_path: Path, name: str
) -> None:
    source = world.hf(TRAINED[name][0])
    before = tree(trained[name])
    assert any(b"optimizer" in data for file, data in before.items() if file.endswith(".metadata"))
    result = convert(trained[name], tmp_path / "hf", Options(hf_config=source, verify=True)).result
    assert (result.to, result.verified) == ("hf", True)
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
    assert (tmp_path / "hf" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert tree(trained[name]) == before
