"""How the releases call the parts of an MTP layer, written down apart from the tables."""

from __future__ import annotations

from tests.checkpoints import Tensors

# family: prefix, joint projection, count field
NEXTN, MTP, OWN = "model.layers.{n}.", "mtp.", "model.mtp_layers."
HEADS: dict[str, tuple[str, str, str]] = {
    "deepseek_v3": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm4_moe": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm4_moe_lite": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "glm_moe_dsa": (NEXTN, "model.layers.{n}.eh_proj.weight", "num_nextn_predict_layers"),
    "qwen3_next": (MTP, "mtp.fc.weight", "num_nextn_predict_layers"),
    "qwen3_5_text": (MTP, "mtp.fc.weight", "mtp_num_hidden_layers"),
    "qwen3_5_moe_text": (MTP, "mtp.fc.weight", "mtp_num_hidden_layers"),
    "mimo": (OWN, "model.mtp_layers.0.input_proj.weight", "num_nextn_predict_layers"),
}
UNDECLARED = ("qwen3_next",)  # no field of the release counts its layer


def prefix_of(family: str, layers: int = 2) -> str:
    return HEADS[family][0].format(n=layers)


def body_of(tensors: Tensors, family: str, layers: int = 2) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix_of(family, layers))}
