"""Ling (bailing_moe) and Step-3.5 (step3p5) against an independent statement of every tensor: reshapes, not block lists.

Names are those that SGLang's loaders read (bailing_moe.py, step3p5.py). That these layouts mean the same to Megatron and to
transformers is shown by their logits (tests/oracles).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.errors import CkptError
from tests.checkpoints import Tensors, assert_same, changed, changed_config, config_of, hf_tensors, megatron_tensors

H, F, MOE_F, V, D, EXPERTS = 16, 24, 12, 40, 4, 12

LING: dict[str, Any] = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "model_type": "bailing_moe",
    "first_k_dense_replace": 1,
    "head_dim": D,
    "hidden_act": "silu",
    "hidden_size": H,
    "intermediate_size": F,
    "max_position_embeddings": 64,
    "moe_intermediate_size": MOE_F,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": MOE_F + 2,
    "n_group": 4,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600000,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "use_bias": False,
    "use_qk_norm": True,
    "use_qkv_bias": True,
    "vocab_size": V,
}
STEP: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3, "head_dim": D},
    "head_dim": D,
    "hidden_size": H,
    "intermediate_size": F,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    "max_position_embeddings": 64,
    "moe_intermediate_size": MOE_F,
    "moe_layers_enum": "1,2",
    "moe_num_experts": EXPERTS,
    "moe_router_scaling_factor": 3.0,
    "moe_top_k": 2,
    "norm_expert_weight": True,
    "num_attention_groups": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": [10000.0, 500000.0, 10000.0, 500000.0, 500000.0],
    "share_expert_dim": MOE_F + 2,
    "vocab_size": V,
}


def random(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))).to(dtype)


def ling_layer(at: str, sparse: bool) -> dict[str, tuple[int, ...]]:
    rows = (4 + 2 * 2) * D
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "attention.query_key_value.weight": (rows, H),
        "attention.query_key_value.bias": (rows,),
        "attention.dense.weight": (H, 4 * D),
        "attention.query_layernorm.weight": (D,),
        "attention.key_layernorm.weight": (D,),
    }
    if not sparse:
        shapes |= {f"mlp.{p}_proj.weight": (F, H) for p in ("gate", "up")} | {"mlp.down_proj.weight": (H, F)}
        return {at + name: shape for name, shape in shapes.items()}
    shapes |= {"mlp.gate.weight": (EXPERTS, H), "mlp.gate.expert_bias": (EXPERTS,)}
    for inner, width in [(f"experts.{e}", MOE_F) for e in range(EXPERTS)] + [("shared_experts", MOE_F + 2)]:
        shapes |= {f"mlp.{inner}.{p}_proj.weight": (width, H) for p in ("gate", "up")}
        shapes[f"mlp.{inner}.down_proj.weight"] = (H, width)
    return {at + name: shape for name, shape in shapes.items()}


def step_layer(at: str, heads: int, groups: int, sparse: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (heads * D, H),
        "self_attn.k_proj.weight": (groups * D, H),
        "self_attn.v_proj.weight": (groups * D, H),
        "self_attn.g_proj.weight": (heads, H),
        "self_attn.o_proj.weight": (H, heads * D),
        "self_attn.q_norm.weight": (D,),
        "self_attn.k_norm.weight": (D,),
    }
    if sparse:
        shapes |= {f"moe.{p}_proj.weight": (EXPERTS, MOE_F, H) for p in ("gate", "up")}
        shapes |= {"moe.down_proj.weight": (EXPERTS, H, MOE_F), "moe.gate.weight": (EXPERTS, H)}
        shapes |= {"moe.router_bias": (EXPERTS,)}
        shapes |= {f"share_expert.{p}_proj.weight": (MOE_F + 2, H) for p in ("gate", "up")}
        shapes |= {"share_expert.down_proj.weight": (H, MOE_F + 2)}
    else:
        shapes |= {f"mlp.{p}_proj.weight": (F, H) for p in ("gate", "up")} | {"mlp.down_proj.weight": (H, F)}
    return {at + name: shape for name, shape in shapes.items()}


def frame(at: str, final: str) -> dict[str, tuple[int, ...]]:
    norms = dict.fromkeys((f"{at}enorm.weight", f"{at}hnorm.weight", f"{at}{final}"), (H,))
    return {**norms, f"{at}eh_proj.weight": (H, 2 * H)}


def ling_tensors() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"model.word_embeddings.weight": (V, H), "lm_head.weight": (V, H)}
    shapes |= {"model.norm.weight": (H,), **frame("model.layers.3.", "final_layernorm.weight")}
    for i in range(4):
        shapes |= ling_layer(f"model.layers.{i}.", sparse=i > 0)
    return {n: random(n, s, torch.float32 if n.endswith("expert_bias") else torch.bfloat16) for n, s in shapes.items()}


STEP_HEADS = [(4, 2), (6, 3), (4, 2), (6, 3), (6, 3)]


def step_tensors() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, H), "lm_head.weight": (V, H)}
    shapes["model.norm.weight"] = (H,)
    for i, (heads, groups) in enumerate(STEP_HEADS):
        shapes |= step_layer(f"model.layers.{i}.", heads, groups, sparse=i in (1, 2))
    for i in (3, 4):
        shapes |= frame(f"model.layers.{i}.", "transformer.shared_head.norm.weight")
    made = {n: random(n, s, torch.float32 if n.endswith("router_bias") else torch.bfloat16) for n, s in shapes.items()}
    copies = {f"model.layers.{i}.transformer.shared_head.output.weight": made["lm_head.weight"].clone() for i in (3, 4)}
    return made | copies


def folder(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int) -> torch.Tensor:
    """Per group: its queries, its key, its value."""
    parts = [part.view(groups, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, dim=1).flatten(0, 1)


def places(layers: int) -> list[tuple[str, str]]:
    """(Hugging Face, Megatron) prefixes of three decoder layers and of the MTP layers after them."""
    decoder = [(f"model.layers.{i}.", f"decoder.layers.{i}.") for i in range(3)]
    return decoder + [(f"model.layers.{i}.", f"mtp.layers.{i - 3}.transformer_layer.") for i in range(3, layers)]


def outer(t: Tensors, embedding: str, final: dict[int, str]) -> Tensors:
    zeros = torch.zeros(128 - V, H, dtype=torch.bfloat16)
    found = {
        "embedding.word_embeddings.weight": torch.cat([t[embedding], zeros]),
        "output_layer.weight": torch.cat([t["lm_head.weight"], zeros]),
        "decoder.final_layernorm.weight": t["model.norm.weight"],
    }
    for i, name in final.items():
        for part in ("enorm", "hnorm", "eh_proj"):
            found[f"mtp.layers.{i - 3}.{part}.weight"] = t[f"model.layers.{i}.{part}.weight"]
        found[f"mtp.layers.{i - 3}.final_layernorm.weight"] = t[f"model.layers.{i}.{name}"]
    return found


def dense(t: Tensors, hf: str, at: str) -> Tensors:
    return {
        f"{at}mlp.linear_fc1.layer_norm_weight": t[f"{hf}post_attention_layernorm.weight"],
        f"{at}mlp.linear_fc1.weight": torch.cat([t[f"{hf}mlp.gate_proj.weight"], t[f"{hf}mlp.up_proj.weight"]]),
        f"{at}mlp.linear_fc2.weight": t[f"{hf}mlp.down_proj.weight"],
    }


def router(t: Tensors, hf: str, at: str, weight: str, bias: str, shared: str) -> Tensors:
    norm = t[f"{hf}post_attention_layernorm.weight"]
    gate_up = [t[f"{hf}{shared}.{part}_proj.weight"] for part in ("gate", "up")]
    return {
        f"{at}pre_mlp_layernorm.weight": norm,
        f"{at}mlp.linear_fc1.layer_norm_weight": norm,
        f"{at}mlp.router.weight": t[hf + weight],
        f"{at}mlp.router.expert_bias": t[hf + bias],
        f"{at}mlp.shared_experts.linear_fc1.weight": torch.cat(gate_up),
        f"{at}mlp.shared_experts.linear_fc2.weight": t[f"{hf}{shared}.down_proj.weight"],
    }


def expected_ling(t: Tensors) -> Tensors:
    found = outer(t, "model.word_embeddings.weight", {3: "final_layernorm.weight"})
    for number, (hf, at) in enumerate(places(4)):
        a = f"{at}self_attention."
        for kind in ("weight", "bias"):
            parts = t[f"{hf}attention.query_key_value.{kind}"].split([4 * D, 2 * D, 2 * D])
            found[f"{a}linear_qkv.{kind}"] = grouped(*parts, groups=2)
        found |= {
            f"{a}linear_qkv.layer_norm_weight": t[f"{hf}input_layernorm.weight"],
            f"{a}linear_proj.weight": t[f"{hf}attention.dense.weight"],
            f"{a}q_layernorm.weight": t[f"{hf}attention.query_layernorm.weight"],
            f"{a}k_layernorm.weight": t[f"{hf}attention.key_layernorm.weight"],
        }
        if number == 0:
            found |= dense(t, hf, at)
            continue
        found |= router(t, hf, at, "mlp.gate.weight", "mlp.gate.expert_bias", "mlp.shared_experts")
        each = {p: [t[f"{hf}mlp.experts.{e}.{p}_proj.weight"] for e in range(EXPERTS)] for p in ("gate", "up", "down")}
        fc1 = [torch.cat(both) for both in zip(each["gate"], each["up"], strict=True)]
        found[f"{at}mlp.experts.experts.linear_fc1.weight"] = torch.stack(fc1)
        found[f"{at}mlp.experts.experts.linear_fc2.weight"] = torch.stack(each["down"])
    return found


def expected_step(t: Tensors) -> Tensors:
    found = outer(t, "model.embed_tokens.weight", dict.fromkeys((3, 4), "transformer.shared_head.norm.weight"))
    for number, (hf, at) in enumerate(places(5)):
        a, s, (_, groups) = f"{at}self_attention.", f"{hf}self_attn.", STEP_HEADS[number]
        q, k, v, g = (t[f"{s}{part}_proj.weight"] for part in "qkvg")
        found |= {
            f"{a}linear_qkv.weight": torch.cat([grouped(q, k, v, groups), g]),
            f"{a}linear_qkv.layer_norm_weight": t[f"{hf}input_layernorm.weight"],
            f"{a}linear_proj.weight": t[f"{s}o_proj.weight"],
            f"{a}q_layernorm.weight": t[f"{s}q_norm.weight"],
            f"{a}k_layernorm.weight": t[f"{s}k_norm.weight"],
        }
        if number not in (1, 2):
            found |= dense(t, hf, at)
            continue
        found |= router(t, hf, at, "moe.gate.weight", "moe.router_bias", "share_expert")
        both = [t[f"{hf}moe.{part}_proj.weight"] for part in ("gate", "up")]
        found[f"{at}mlp.experts.experts.linear_fc1.weight"] = torch.cat(both, dim=1)
        found[f"{at}mlp.experts.experts.linear_fc2.weight"] = t[f"{hf}moe.down_proj.weight"]
    return found


CASES = {"ling": (LING, ling_tensors, expected_ling), "step": (STEP, step_tensors, expected_step)}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_where_the_statement_says_and_comes_back(case: str, tmp_path: Path) -> None:
    config, make, expected = CASES[case]
    source = folder(tmp_path / "hf", config, make())
    result = convert(source, tmp_path / "td", Options(verify=True)).result
    assert result.mtp_written == config["num_nextn_predict_layers"]
    assert_same(megatron_tensors(tmp_path / "td"), expected(make()))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    assert_same(hf_tensors(tmp_path / "back"), make())
    assert (tmp_path / "back" / "config.json").read_bytes() == (source / "config.json").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_without_its_mtp_layers(case: str, tmp_path: Path) -> None:
    config, make, _ = CASES[case]
    convert(folder(tmp_path / "hf", config, make()), tmp_path / "td", Options(mtp="drop"))
    convert(tmp_path / "td", tmp_path / "back", Options(verify=True))
    left = {
        name: tensor for name, tensor in make().items() if not name.startswith(("model.layers.3.", "model.layers.4."))
    }
    assert_same(hf_tensors(tmp_path / "back"), left)
    assert config_of(tmp_path / "back")["num_nextn_predict_layers"] == 0


def test_a_head_of_an_mtp_layer_that_is_no_copy_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "hf", STEP, step_tensors())
    with changed(source / "model.safetensors") as tensors:
        tensors["model.layers.4.transformer.shared_head.output.weight"][1, 2] += 1
    with pytest.raises(CkptError, match=r"model\.layers\.4\.transformer\.shared_head\.output"):
        convert(source, tmp_path / "td", Options())


WRONG: list[tuple[str, str, Any]] = [
    ("ling", "use_bias", True),
    ("ling", "norm_head", True),
    ("ling", "multi_gate", True),
    ("ling", "score_function", "softmax"),
    ("ling", "norm_topk_prob", None),
    ("step", "layer_types", ["full_attention"] * 3),
    ("step", "moe_layers_enum", "1,2,4"),
    ("step", "moe_layers_enum", "x"),
    ("step", "attention_other_setting", None),
    ("step", "zero_centered", False),
    ("step", "use_head_wise_attn_gate", False),
]


@pytest.mark.parametrize(("case", "field", "value"), WRONG)
def test_a_config_that_cannot_be_is_refused_by_its_field(case: str, field: str, value: Any, tmp_path: Path) -> None:
    config, make, _ = CASES[case]
    source = folder(tmp_path / "hf", config, make())
    with changed_config(source) as edited:
        edited[field] = value
    with pytest.raises(CkptError, match=field):
        convert(source, tmp_path / "td", Options())
    assert not (tmp_path / "td").exists()
