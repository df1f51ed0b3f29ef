"""The golden lists expand to the counts and totals their sources state, and agree with their configs."""

import math
from functools import cache
from typing import Any

import pytest

from .golden import Golden, SlimeArgs, Tensor, expand, load, names, slime_args, slime_notes, with_family

DTYPES = {"BF16", "F32", "F8_E4M3", "U8", None}
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "model.word_embeddings.weight",
    "backbone.embeddings.weight",
)
SLIME = slime_args()


@cache
def _load(name: str) -> tuple[Golden, dict[str, Tensor]]:
    golden = load(name)
    return golden, golden.tensors()


def _parameters(golden: Golden, tensors: dict[str, Tensor]) -> dict[str, int]:
    """The list's own sums under the keys that its file gives."""
    sizes: list[tuple[str, str, int]] = []
    for name, (shape, dtype) in tensors.items():
        assert shape is not None
        sizes.append((name, dtype or "unknown", math.prod(shape)))
    sums: dict[str, int] = {}
    for key in golden.parameters:
        if key == "total":
            sums[key] = sum(size for _, _, size in sizes)
        elif key.startswith("without "):
            prefix = key.removeprefix("without ")
            sums[key] = sum(size for name, _, size in sizes if not name.startswith(prefix))
        else:
            sums[key] = sum(size for _, dtype, size in sizes if dtype == key)
    return sums


def test_names_and_families() -> None:
    found = names()
    assert len(found) == 35
    assert found == sorted(found)
    assert {golden.name for golden in with_family("qwen3")} == {"Qwen3-0.6B", "Qwen3-32B", "Qwen3-8B"}
    assert sum(len(with_family(family)) for family in {load(name).family for name in found}) == len(found)
    assert with_family("no such family") == []


def test_expand() -> None:
    assert expand("norm.weight") == ["norm.weight"]
    assert expand("a.{0..1,3}.b.{5,7}") == ["a.0.b.5", "a.0.b.7", "a.1.b.5", "a.1.b.7", "a.3.b.5", "a.3.b.7"]


@pytest.mark.parametrize("pattern", ["a.{}", "a.{1..}", "a.{2..1}", "a.{1,1}", "a.{0..2,1}", "a.{x}", "a.{0", "a.0}"])
def test_expand_refuses(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"bad pattern|bad index set|names an index twice"):
        expand(pattern)


def test_a_loaded_config_is_fresh() -> None:
    load("Qwen3-0.6B").config["hidden_size"] = 0
    assert load("Qwen3-0.6B").config["hidden_size"] == 1024


def test_long_lists_unfold() -> None:
    kinds = load("GLM-5.2").config["indexer_types"]
    assert [layer for layer, kind in enumerate(kinds) if kind == "full"] == [0, 1, *range(2, 78, 4)]
    assert len(kinds) == 78
    ignored = load("MiMo-V2.5").config["quantization_config"]["ignored_layers"]
    assert len(ignored) == 49
    assert ignored[47:] == ["model.layers.47.self_attn.o_proj", "model.decoder.self_attn.o_proj"]


@pytest.mark.parametrize("name", names())
def test_list(name: str) -> None:
    golden, tensors = _load(name)
    assert len(tensors) == golden.count
    assert {dtype for _, dtype in tensors.values()} <= DTYPES
    if all(shape is not None for shape, _ in tensors.values()):
        assert _parameters(golden, tensors) == golden.parameters
    else:
        assert all(tensor == (None, None) for tensor in tensors.values())
    dtypes = {key: size for key, size in golden.parameters.items() if key != "total" and not key.startswith("without ")}
    assert not dtypes or sum(dtypes.values()) == golden.parameters["total"]


@pytest.mark.parametrize("name", names())
def test_facts(name: str) -> None:
    golden = load(name)
    assert golden.names in {"listed", "derived", "reconstructed"}
    assert golden.config_from in {"raw", "printed", "partial"}
    assert set(golden.stated) <= {"count", "parameters"}
    assert golden.source
    assert "\n" not in golden.source
    assert "$" not in str(golden.config), "a folded list is left"


@pytest.mark.parametrize("name", names())
def test_list_agrees_with_config(name: str) -> None:
    golden, tensors = _load(name)
    config = golden.text_config
    embeddings = [key for key in EMBEDDINGS if key in tensors]
    assert len(embeddings) == 1
    assert tensors[embeddings[0]][0] in {None, (config["vocab_size"], config["hidden_size"])}
    layers = {int(key.split("layers.")[1].split(".")[0]) for key in tensors if key.startswith(_decoder_prefix(golden))}
    first_mtp = config["num_hidden_layers"]
    assert set(range(first_mtp)) <= layers
    # MTP layers that continue the decoder's numbering
    last_mtp = first_mtp + config.get("num_nextn_predict_layers", 0)
    assert layers <= set(range(last_mtp))
    if config.get("tie_word_embeddings") and name != "Qwen3-0.6B":
        assert "lm_head.weight" not in tensors
    else:
        assert "lm_head.weight" in tensors
    for key in ("layer_types", "indexer_types", "mlp_layer_types", "hybrid_layer_pattern", "hybrid_override_pattern"):
        assert len(config.get(key, range(first_mtp))) == first_mtp


def _decoder_prefix(golden: Golden) -> str:
    if golden.family == "nemotron_h":
        return "backbone.layers."
    return "model.language_model.layers." if "text_config" in golden.config else "model.layers."


def test_related_tensors() -> None:
    thinking = load("ERNIE-4.5-21B-A3B-Thinking")
    assert list(thinking.related) == ["ERNIE-4.5-21B-A3B-PT"]
    assert len(thinking.related_tensors("ERNIE-4.5-21B-A3B-PT")) == 12


def test_equal_lists() -> None:
    assert _load("DeepSeek-R1")[1] == _load("DeepSeek-V3")[1]
    copies = {"model.layers.92.embed_tokens.weight", "model.layers.92.shared_head.head.weight"}
    assert _load("GLM-4.5")[1].keys() - _load("GLM-4.6")[1].keys() == copies


def test_slime_models() -> None:
    assert len(SLIME) == 39
    assert {name for name, args in SLIME.items() if args.differences} == {
        "qwen2.5-1.5B",
        "qwen3-235B-A22B",
        "qwen3-30B-A3B",
    }
    assert [name for name, args in SLIME.items() if "--mtp-num-layers" in args.flags] == ["mimo-7B-rl"]
    assert slime_notes()


def _field(config: dict[str, Any], expression: str) -> Any:
    text: dict[str, Any] = config.get("text_config", config)
    if expression == "not tie_word_embeddings":
        return not text["tie_word_embeddings"]
    if expression == "rope_parameters.rope_theta":
        return text["rope_parameters"]["rope_theta"]
    if expression == "n_shared_experts * moe_intermediate_size":
        return text["n_shared_experts"] * text["moe_intermediate_size"]
    if expression == "hidden_size / num_attention_heads":
        return text["hidden_size"] // text["num_attention_heads"]
    if expression == "num_experts" and "num_experts" not in text:
        return text["num_local_experts"]
    return text[expression]


@pytest.mark.parametrize("args", SLIME.values(), ids=SLIME.keys())
def test_slime_flags_agree_with_config(args: SlimeArgs) -> None:
    assert not isinstance(args.config, str) or args.config in names()
    assert (args.compared_with is None) == (not args.corresponds)
    config = args.hf_config()
    for flag, (expression, value) in args.corresponds.items():
        if config is not None:
            assert _field(config, expression) == value, flag
        given = args.flags.get(flag, False if flag.startswith("--untie-") else value)
        if flag in args.differences:
            assert args.differences[flag] == {"hf": value, "slime": given}
        else:
            assert given == value, flag
    assert args.differences.keys() <= args.corresponds.keys()
