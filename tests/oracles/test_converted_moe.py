"""The converter's own output for families with experts, judged by the real megatron-core 0.16.1 on CPU.

| family                                      | parameters                | main logits  | MTP logits               |
|---------------------------------------------|---------------------------|--------------|--------------------------|
| qwen3_moe, renormalised routing or not      | bit-equal in every layout | transformers | -                        |
| gpt_oss (sinks, biases, its own activation) | bit-equal, TP1, EP2, PP2  | transformers | -                        |
| glm4_moe (grouped attention, partial rope)  | bit-equal in every layout | transformers | transformers' MtpModel   |
| bailing_moe (joint qkv, groups of experts)  | bit-equal in every layout | transformers | transformers' MtpModel   |
| step3p5 (heads by layer, a gate per head)   | bit-equal, TP1 and EP2    | transformers | transformers' MtpModel   |
| deepseek_v3 (latent, groups of experts)     | bit-equal in every layout | transformers | transformers' MtpModel   |
| deepseek_v3 without a query rank (Moonlight)| bit-equal in every layout | transformers | -                        |
| glm4_moe_lite (latent)                      | bit-equal in every layout | transformers | transformers' MtpModel   |
| deepseek_v32, glm_moe_dsa (sparse, latent)  | bit-equal in every layout | transformers | transformers' MtpModel   |

The layouts are TP1, TP2, EP2, TP2 x EP2 and PP2, even and uneven, at Megatron's default strictness. Logits are fp32 and agree
to 1e-5 of their scale. Everything is asked for twice: under the names of Megatron's local spec and under those of its
TransformerEngine specs (norms fused or apart), whose modules stand-ins play.

The indexer of sparse attention is proven to load, not to choose alike: it keeps every key here (`index_topk` exceeds the
length). Megatron 0.16.1 reads the rotary rows of an index head last and its query before the norm; Hugging Face, and later
Megatrons "to align with DeepSeek's implementation", read the rotary rows first, which is the order the converter keeps.

Step-3.5's gates are added to Megatron's attention by hooks (megatron/step.py), its windows are longer than the text and
its rotary bases equal: what differs there from layer to layer is no matter of the weights.

transformers normalises inside latent attention with an epsilon of 1e-6 whatever the config says and Megatron with the
config's, so these configs say 1e-6; GLM-4.7-Flash says 1e-5, hence its Megatron logits differ from transformers' by that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.convert import Options
from ckpt_tools.families import blocks, moe
from ckpt_tools.families.dims import Dims
from ckpt_tools.mapping.arrangement import Arrangement, Block
from ckpt_tools.mapping.rules import Axis, Rule

from ..checkpoints import megatron_tensors
from .conversions import BF16, Case, Results, Saved, Step, World, assert_agreed, assert_broken, assert_loaded
from .megatron.configs import tiny_config
from .megatron.hf import mtp_layers

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

UNPADDED = Options(make_vocab_size_divisible_by=1)
CASES = {
    "qwen3_moe": Case(tiny_config("qwen3_moe")),
    "qwen3_moe-stacked": Case(tiny_config("qwen3_moe"), Options(layout="stacked"), BF16),
    "qwen3_moe-mixed": Case(tiny_config("qwen3_moe", mlp_only_layers=[1, 2], norm_topk_prob=False)),
    "gpt_oss": Case(tiny_config("gpt_oss")),
    "gpt_oss-bf16": Case(tiny_config("gpt_oss", num_local_experts=8), dtype=BF16),
    "glm4_moe": Case(tiny_config("glm4_moe"), UNPADDED, padded_vocab=96),
    "glm4_moe-air": Case(tiny_config("glm4_moe", use_qk_norm=False, n_shared_experts=2), dtype=BF16),
    "ling": Case(tiny_config("bailing_moe")),
    "ring-bias": Case(tiny_config("bailing_moe", use_qkv_bias=True, n_group=1, topk_group=1, num_experts_per_tok=2)),
    "step3p5": Case(tiny_config("step3p5")),
    "deepseek_v3": Case(tiny_config("deepseek_v3")),
    "deepseek_v3-bf16": Case(tiny_config("deepseek_v3", num_nextn_predict_layers=2), dtype=BF16),
    "moonlight": Case(tiny_config("deepseek_v3", q_lora_rank=None, num_nextn_predict_layers=0)),
    "glm4_moe_lite": Case(tiny_config("glm4_moe_lite")),
    "deepseek_v32": Case(tiny_config("deepseek_v32")),
    "glm_moe_dsa": Case(tiny_config("glm_moe_dsa")),
}
# Megatron builds the others under these layouts: no tensor-parallel rule of 0.16.1 cuts the rows of Step's gates, the
# oracle adds them in one stage only, and Megatron refuses experts with biases (gpt-oss) that are cut.
CUT = [name for name in CASES if not name.startswith(("step3p5", "gpt_oss"))]
STAGED = [name for name in CASES if name != "step3p5"]
EXACT = [name for name, case in CASES.items() if case.dtype is not BF16]


def up_over_gate(extent: int) -> Arrangement:
    """[up; gate]."""
    return Arrangement((Block(1, 0, extent), Block(0, 0, extent)), cuts=(extent,))


def experts_backwards(name: str, values: range) -> Axis:
    """The experts in reverse."""
    return Axis(name, values, tuple(reversed(values)) if name == "expert" else None)


def exchanged_frame(d: Dims, inner: blocks.Place, hf: dict[str, str], swapped: bool) -> tuple[Rule, ...]:
    """MiMo's order of the halves where there is none to exchange."""
    return MTP_FRAME(d, inner, hf, not swapped)


MTP_FRAME = blocks.mtp_frame
# What is broken, the parameters it breaks, the heads whose logits show it.
FAULTS: dict[str, tuple[tuple[Any, str, Any], str, tuple[str, ...]]] = {
    "gate": ((moe, "gate_over_up", up_over_gate), r"experts\..*linear_fc1", ("main", "mtp")),
    "experts": ((moe, "Axis", experts_backwards), r"local_experts", ("main", "mtp")),
    "halves": ((blocks, "mtp_frame", exchanged_frame), r"eh_proj", ("mtp",)),
}
BROKEN_CASES = {name: replace(CASES["deepseek_v3"], patches=(patch,)) for name, (patch, _, _) in FAULTS.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("moe"), CASES | BROKEN_CASES).make()


@pytest.fixture(scope="module")
def one_rank(world: World) -> Results:
    steps = [(f"load {name}", world.step(name, "load")) for name in world.cases]
    steps += [(f"logits {name}", world.step(name, "logits")) for name in [*EXACT, *FAULTS]]
    steps += [(f"te logits {name}", world.step(name, "logits", te_names=True)) for name in EXACT]
    return world.judge(steps)


@pytest.fixture(scope="module")
def two_tensor_ranks(world: World) -> Results:
    steps = [(name, world.step(name, "load")) for name in CUT]
    steps += [(f"te {name}", world.step(name, "load", te_names=True)) for name in CUT]
    return world.judge(steps, tp=2)


@pytest.fixture(scope="module")
def two_expert_ranks(world: World) -> Results:
    return world.judge(((name, world.step(name, "load")) for name in [*CASES, *FAULTS]), ep=2)


@pytest.fixture(scope="module")
def two_stages(world: World) -> Results:
    def steps() -> Iterator[tuple[str, Step]]:
        for name in STAGED:
            for first in (None, 1):
                yield f"{name} {first}", world.step(name, "load", first_stage_layers=first)

    return world.judge(steps(), pp=2)


@pytest.fixture(scope="module")
def saved(world: World) -> Saved:
    return Saved.of(world, CUT, tp=2, ep=2)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_loads_every_parameter(one_rank: Results, name: str) -> None:
    assert_loaded(one_rank[f"load {name}"])


@pytest.mark.parametrize("name", CUT)
def test_two_tensor_ranks_load_every_parameter(two_tensor_ranks: Results, name: str) -> None:
    assert_loaded(two_tensor_ranks[name])


@pytest.mark.parametrize("name", CUT)
def test_every_name_that_transformer_engine_asks_for_is_there(two_tensor_ranks: Results, name: str) -> None:
    assert_loaded(two_tensor_ranks[f"te {name}"])


@pytest.mark.parametrize("name", CASES)
def test_two_expert_ranks_load_every_parameter(two_expert_ranks: Results, name: str) -> None:
    assert_loaded(two_expert_ranks[name])


@pytest.mark.parametrize("first", [None, 1])
@pytest.mark.parametrize("name", STAGED)
def test_two_stages_load_every_parameter(two_stages: Results, name: str, first: int | None) -> None:
    assert_loaded(two_stages[f"{name} {first}"])


@pytest.mark.parametrize("name", EXACT)
def test_logits_agree(one_rank: Results, name: str) -> None:
    for names in ("", "te "):
        assert_agreed(one_rank[f"{names}logits {name}"], mtp_layers(CASES[name].config))


@pytest.mark.parametrize("name", CUT)
def test_what_four_ranks_save_converts_back_to_the_bits(saved: Saved, tmp_path: Path, name: str) -> None:
    saved.assert_converts_back(name, tmp_path / "hf")


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "glm4_moe_lite"])
def test_the_router_bias_stays_float32_and_both_norm_names_are_one_tensor(world: World, name: str) -> None:
    stored = megatron_tensors(world.converted(name))
    assert stored["decoder.layers.1.mlp.router.expert_bias"].dtype is torch.float32
    pairs = {"decoder.layers.1.pre_mlp_layernorm.weight": "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"}
    if name != "glm4_moe":
        at = "decoder.layers.1.self_attention."
        pairs[at + "q_layernorm.weight"] = at + "linear_q_up_proj.layer_norm_weight"
        pairs[at + "kv_layernorm.weight"] = at + "linear_kv_up_proj.layer_norm_weight"
    for one, other in pairs.items():
        assert torch.equal(stored[one], stored[other])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_converter_is_noticed(world: World, one_rank: Results, two_expert_ranks: Results, fault: str) -> None:
    _, pattern, heads = FAULTS[fault]
    broken = {name for name in world.parameters(fault) if re.search(pattern, name)}
    for result in (one_rank[f"load {fault}"], two_expert_ranks[fault]):
        assert {mismatch["parameter"] for mismatch in result["mismatches"]} == broken
    assert_broken(one_rank[f"logits {fault}"], *heads)
