"""Heads as their producers write them: the trained ones of tests/assets, and small ones made with torch and safetensors.

Nothing here asks ckpt_tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
ASSETS = Path(__file__).resolve().parents[2] / "assets"
EAGLE, EAGLE3, MTP = (ASSETS / f"smollm2-{name}" for name in ("eagle", "eagle3", "mtp"))

V, DV, H, F, HEADS, KV, D = 64, 16, 32, 48, 4, 2, 8
IDS = [0, 2, 3, 7, 8, 15, 20, 31, 32, 33, 40, 41, 50, 51, 62, 63]
D2T = [j - i for i, j in enumerate(IDS)]


def layer(prefix: str, width: int, *, bias: bool = False, qk_norm: bool = False, h: int = H) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HEADS * D, width),
        "self_attn.k_proj.weight": (KV * D, width),
        "self_attn.v_proj.weight": (KV * D, width),
        "self_attn.o_proj.weight": (h, HEADS * D),
        "mlp.gate_proj.weight": (F, h),
        "mlp.up_proj.weight": (F, h),
        "mlp.down_proj.weight": (h, F),
        "post_attention_layernorm.weight": (h,),
    }
    if bias:
        shapes |= {f"self_attn.{n}_proj.bias": ((HEADS if n == "q" else KV) * D,) for n in "qkv"}
    if qk_norm:
        shapes |= {f"self_attn.{n}_norm.weight": (D,) for n in "qk"}
    return random({prefix + name: shape for name, shape in shapes.items()})


def random(shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    made = torch.Generator().manual_seed(len(shapes))
    return {name: torch.randn(shape, generator=made).bfloat16() for name, shape in shapes.items()}


def eagle_tensors(**options: Any) -> Tensors:
    return {**random({"fc.weight": (H, 2 * H)}), **layer("layers.0.", H, **options)}


def eagle3_tensors(
    prefix: str = "midlayer.", *, features: int = 3, target: int = H, h: int = H, **options: Any
) -> Tensors:
    norms = {prefix + name: (h,) for name in ("hidden_norm.weight", "input_layernorm.weight")}
    outer = {"fc.weight": (h, features * target), "norm.weight": (h,), "lm_head.weight": (DV, h)}
    mask = torch.zeros(V, dtype=torch.bool)
    mask[IDS] = True
    return {**random({**outer, **norms}), **layer(prefix, 2 * h, h=h, **options), "d2t": torch.tensor(D2T), "t2d": mask}


Q_RANK, KV_RANK, NOPE, ROPE = 24, 16, 8, 8


def latent_tensors() -> Tensors:
    """An EAGLE-3 head with DeepSeek's attention (for Kimi)."""
    kept = {name: t for name, t in eagle3_tensors("layers.0.").items() if "self_attn" not in name}
    at = "layers.0.self_attn."
    shapes = {
        at + "q_a_proj.weight": (Q_RANK, 2 * H),
        at + "q_a_layernorm.weight": (Q_RANK,),
        at + "q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_RANK),
        at + "kv_a_proj_with_mqa.weight": (KV_RANK + ROPE, 2 * H),
        at + "kv_a_layernorm.weight": (KV_RANK,),
        at + "kv_b_proj.weight": (HEADS * (NOPE + D), KV_RANK),
        at + "o_proj.weight": (H, HEADS * D),
    }
    return kept | random(shapes)


def latent_config() -> dict[str, Any]:
    ranks = {"q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK, "v_head_dim": D}
    heads = {"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "num_key_value_heads": HEADS}
    moe = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    config = eagle3_config(**ranks, **heads, **moe, moe_intermediate_size=F, n_shared_experts=1, moe_layer_freq=1)
    config |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3"}
    return {name: value for name, value in config.items() if name != "head_dim"}


def llama_config(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": H,
        "intermediate_size": F,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": D,
        "num_hidden_layers": 1,
        "vocab_size": V,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **more,
    }


def eagle3_config(**more: Any) -> dict[str, Any]:
    return llama_config(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DV, **more)


def speculators_config(ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    inner = {k: v for k, v in llama_config().items() if k != "architectures"}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DV,
        "eagle_aux_hidden_state_layer_ids": ids,
        "norm_before_residual": False,
        "target_hidden_size": None,
        "transformer_layer_config": inner,
        "speculators_config": {
            "algorithm": "eagle3",
            "verifier": {"name_or_path": "some/model", "architectures": ["X"]},
        },
        **more,
    }


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: t.contiguous() for name, t in tensors.items()}, folder / file, metadata={"format": "pt"})
    else:
        torch.save(tensors, folder / file)
    return folder


def target(folder: Path, **more: Any) -> Path:
    """The config of the model that the small heads are for: 8 layers."""
    folder.mkdir(parents=True, exist_ok=True)
    config = llama_config(num_hidden_layers=8, max_position_embeddings=512, **more)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def tensors_of(folder: Path) -> Tensors:
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found
