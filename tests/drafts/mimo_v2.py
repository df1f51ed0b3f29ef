"""The MTP layers of a small MiMo-V2 model, in a folder with the model's config; written from the release's list of names.

Nothing here asks ckpt_tools.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .formats.heads import random, write

H, F, HEADS, KV, D, V_D, VOCAB = 64, 96, 4, 2, 16, 8, 64
CONFIGURATION = '''"""Configuration of a MiMo-V2 model, which transformers does not know."""

from transformers import PretrainedConfig


class MiMoV2Config(PretrainedConfig):
    model_type = "mimo_v2_flash"
'''


def config() -> dict[str, Any]:
    """The fields of MiMo-V2-Flash: one dense layer with full attention, one with a window and experts."""
    full = {"num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": D, "v_head_dim": V_D}
    window = {"swa_num_attention_heads": HEADS, "swa_num_key_value_heads": KV, "swa_head_dim": D, "swa_v_head_dim": V_D}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
    router = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": None, "topk_group": 1}
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_mimo_v2.MiMoV2Config"},
        "model_type": "mimo_v2_flash",
        "torch_dtype": "bfloat16",
        "hidden_size": H,
        "intermediate_size": F,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "num_hidden_layers": 2,
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 1],
        "sliding_window": 128,
        "sliding_window_size": 128,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "attention_value_scale": 0.707,
        "attention_bias": False,
        "layernorm_epsilon": 1e-05,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 5000000,
        "swa_rope_theta": 10000,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        **full,
        **window,
        **experts,
        **router,
    }


def mtp_model(folder: Path, layers: int = 1, fused: bool = False) -> Path:
    """`fused`: q, k and v as one tensor, as V2.5 has them."""
    q, k, v = HEADS * D, KV * D, KV * V_D
    attention = {"qkv": q + k + v} if fused else {"q": q, "k": k, "v": v}
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj.weight": (n, H) for name, n in attention.items()}
    norms = ("enorm", "hnorm", "final_layernorm", "input_layernorm", "pre_mlp_layernorm")
    shapes |= {f"{name}.weight": (H,) for name in norms}
    shapes |= {"eh_proj.weight": (H, 2 * H), "self_attn.o_proj.weight": (H, HEADS * V_D)}
    shapes |= {"self_attn.attention_sink_bias": (HEADS,), "mlp.down_proj.weight": (H, F)}
    shapes |= {f"mlp.{name}_proj.weight": (F, H) for name in ("gate", "up")}
    tensors = random({f"model.mtp.layers.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()})
    layout = {"attention_projection_layout": "fused_qkv"} if fused else {}
    write(folder, config() | layout, tensors)
    (folder / "configuration_mimo_v2.py").write_text(CONFIGURATION)
    return folder
