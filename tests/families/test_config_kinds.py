"""Config fields that change names, shapes or numbers are looked at, whichever release states them: read, said or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ckpt_tools.errors import CkptError
from ckpt_tools.families import family_of
from ckpt_tools.families.arguments import model_arguments
from ckpt_tools.families.config import Fields
from ckpt_tools.families.dims import Dims
from ckpt_tools.families.limits import inexpressible
from tests.golden import load

Config = dict[str, Any]

QWEN, MOE, NEXT, HYBRID = (
    "Qwen2.5-7B-Instruct",
    "Qwen3-30B-A3B-Instruct-2507",
    "Qwen3-Next-80B-A3B-Instruct",
    "Qwen3.5-4B",
)
DEEPSEEK, GLM, GLM5, MIMO = "DeepSeek-V3", "GLM-4.5", "GLM-5.2", "MiMo-V2.5"
MINIMAX, ERNIE, OSS = "MiniMax-M2.7", "ERNIE-4.5-21B-A3B-Thinking", "gpt-oss-20b"


def config(name: str, **changed: Any) -> Config:
    """The golden config with fields replaced where they stand; None takes a field out."""
    made = load(name).config
    text = made.get("text_config", made)
    for field, value in changed.items():
        text.pop(field, None)
        if value is not None:
            text[field] = value
    return made


def dims(made: Config) -> Dims:
    fields = Fields(made, "config.json")
    read = family_of(fields).dims(fields)
    fields.done()
    return read


def flags(made: Config, plugin: bool = True) -> dict[str, Any]:
    family = family_of(Fields(made, "config.json"))
    return {a.name: a.value for a in model_arguments(dims(made), 0, family.slime_spec if plugin else None)}


REFUSED: list[tuple[str, Config, str]] = [
    (DEEPSEEK, {"scoring_func": "softmax"}, "scoring_func"),
    (DEEPSEEK, {"topk_method": "greedy"}, "topk_method"),
    (DEEPSEEK, {"attention_bias": True}, "attention_bias"),
    (DEEPSEEK, {"norm_topk_prob": None}, "norm_topk_prob"),
    (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq"),
    (DEEPSEEK, {"moe_layer_freq": [0] * 4 + [1] * 57}, "which layers have experts"),
    (DEEPSEEK, {"moe_layer_freq": [1]}, "moe_layer_freq"),
    (GLM, {"scoring_func": "softmax"}, "scoring_func"),
    (MOE, {"norm_topk_prob": None}, "norm_topk_prob"),
    (NEXT, {"attention_bias": True}, "attention_bias"),
    (HYBRID, {"attn_output_gate": False}, "attn_output_gate"),
    (MIMO, {"attention_bias": True}, "attention_bias"),
    (MIMO, {"n_shared_experts": 1}, "n_shared_experts"),
    (MINIMAX, {"shared_intermediate_size": 64}, "shared_intermediate_size"),
    (MINIMAX, {"attn_type_list": [0, 1]}, "attn_type_list"),
    (MINIMAX, {"rotary_dim": None, "rope_parameters": {"rope_theta": 5e6}}, "partial_rotary_factor"),
    (ERNIE, {"use_bias": True}, "use_bias"),
    (GLM5, {"indexer_types": ["full"]}, "indexer_types"),
]


@pytest.mark.parametrize(("name", "changed", "field"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_no_table_holds_is_refused_by_the_field(name: str, changed: Config, field: str) -> None:
    dims(config(name))
    with pytest.raises(CkptError) as caught:
        dims(config(name, **changed))
    assert caught.value.findings[0].code.startswith("config-")
    assert field in str(caught.value)


UNSTATED: list[tuple[str, Config, bool, str]] = [
    (QWEN, {"use_sliding_window": True}, True, "sliding windows of 131072"),
    (QWEN, {"layer_types": ["full_attention", "sliding_attention"]}, True, "sliding windows"),
    (DEEPSEEK, {"rope_interleave": False}, True, "rope_interleave"),
    (DEEPSEEK, {"norm_topk_prob": False}, True, "renormalises"),
    (MIMO, {}, True, "differ from layer to layer"),
    (ERNIE, {}, True, "selection bias"),
    (OSS, {}, True, "sinks"),
    (MINIMAX, {}, False, "full width"),
    (GLM5, {}, False, "share an indexer"),
    ("GLM-4-9B-0414", {}, False, "norms after attention"),
]


@pytest.mark.parametrize(("name", "changed", "plugin", "said"), UNSTATED, ids=lambda value: str(value)[:40])
def test_what_no_argument_states_is_said(name: str, changed: Config, plugin: bool, said: str) -> None:
    assert any(said in problem for problem in inexpressible(dims(config(name, **changed)), plugin))


@pytest.mark.parametrize("name", [QWEN, MOE, NEXT, HYBRID, DEEPSEEK, GLM, GLM5, MINIMAX])
def test_what_slime_runs_is_stated(name: str) -> None:
    assert inexpressible(dims(config(name)), plugin=True) == []


@pytest.mark.parametrize("name", [MOE, NEXT])
def test_without_renormalisation_the_softmax_comes_first(name: str) -> None:
    """Megatron renormalises by taking the softmax of the chosen logits, unless told to take it before the choice."""
    assert "moe_router_pre_softmax" not in flags(config(name))
    assert flags(config(name, norm_topk_prob=False))["moe_router_pre_softmax"] is True


def test_sparse_layers_as_a_list() -> None:
    listed = config(DEEPSEEK, moe_layer_freq=[0] * 3 + [1] * 58)
    assert dims(listed) == dims(config(DEEPSEEK))
    assert dims(config(DEEPSEEK, moe_layer_freq=[0, 1] * 30 + [1], first_k_dense_replace=None)).moe == pytest.approx(
        dims(config(DEEPSEEK, first_k_dense_replace=None, mlp_layer_types=["dense", "sparse"] * 30 + ["sparse"])).moe
    )


def indexers(**changed: Any) -> tuple[int, ...]:
    read = dims(
        config(GLM5, **{"indexer_types": None, "index_topk_freq": None, "index_skip_topk_offset": None, **changed})
    )
    assert read.mla is not None
    return read.mla.indexer


def test_the_layers_with_an_indexer_are_told_in_four_ways() -> None:
    """GLM-5.2: layers 0, 1, 2, then every fourth, as a list, a pattern, or a frequency with an offset (transformers)."""
    released = (0, 1, *range(2, 78, 4))
    assert dims(config(GLM5)).mla.indexer == released  # type: ignore[union-attr]
    assert indexers(index_topk_pattern="".join("F" if i in released else "S" for i in range(78))) == released
    assert indexers(index_topk_freq=4, index_skip_topk_offset=3) == released
    assert indexers(index_topk_freq=1) == indexers() == tuple(range(78))


@pytest.mark.parametrize("freq", [1, 2, 4])
def test_the_frequency_is_read_as_transformers_reads_it(freq: int) -> None:
    from transformers import GlmMoeDsaConfig

    for offset in (1, 2, 3, 5):
        theirs = GlmMoeDsaConfig(
            num_hidden_layers=78, index_topk_freq=freq, index_skip_topk_offset=offset
        ).indexer_types
        assert indexers(index_topk_freq=freq, index_skip_topk_offset=offset) == tuple(
            i for i, kind in enumerate(theirs) if kind == "full"
        )


def test_sparse_attention_in_plain_megatron() -> None:
    wanted = {"dsa_indexer_n_heads": 64, "dsa_indexer_head_dim": 128, "dsa_indexer_topk": 2048}
    plain = flags(config("DeepSeek-V3.2"), plugin=False)
    assert plain["experimental_attention_variant"] == "dsa"
    assert plain | wanted == plain


def test_delta_nets_are_listed_for_every_layer() -> None:
    """Megatron asserts that the list is as long as the model, whichever kind its last layers are."""
    types = ["linear_attention"] * 4 + ["full_attention"] * 3
    made = config(NEXT, num_hidden_layers=7, layer_types=types)
    assert flags(made, plugin=False)["linear_attention_freq"] == "[1]*4+[0]*3"


@pytest.mark.parametrize("read", ["rotary_dim", "partial_rotary_factor"])
def test_minimax_rotates_a_share_of_each_head(read: str) -> None:
    changed: dict[str, Config] = {
        "rotary_dim": {},
        "partial_rotary_factor": {
            "rotary_dim": None,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {"rope_theta": 5e6},
        },
    }
    assert dims(config(MINIMAX, **changed[read])).rotary_percent == 0.5


SIZES: dict[str, tuple[str, Callable[[], Config]]] = {
    "Qwen2.5-72B": (
        QWEN,
        lambda: {"hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_key_value_heads": 8},
    ),
    "Qwen3-Coder-480B": (
        MOE,
        lambda: (
            {"hidden_size": 6144, "num_attention_heads": 96, "num_key_value_heads": 8, "num_hidden_layers": 62}
            | {"num_experts": 160, "num_local_experts": None, "moe_intermediate_size": 2560, "layer_types": None}
        ),
    ),
    "Llama-3.1-405B": (
        "Llama-3.2-3B-Instruct",
        lambda: {
            "hidden_size": 16384,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
    ),
}


@pytest.mark.parametrize("size", SIZES)
def test_other_sizes_of_a_family(size: str) -> None:
    name, changed = SIZES[size]
    made = config(name, **changed())
    read = dims(made)
    assert (read.hidden_size, read.num_attention_heads) == (made["hidden_size"], made["num_attention_heads"])
