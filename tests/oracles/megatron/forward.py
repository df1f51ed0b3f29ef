"""What Hugging Face computes from a folder: transformers' own models, in fp32."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .hf import (
    DELTA_NET,
    HfConfig,
    Tensors,
    is_tied,
    mtp_layers,
    num_experts,
    read_config,
    read_tensors,
    stored_config,
    stored_tensors,
)

OTHER_TOWERS = ("model.vision_model.", "model.multi_modal_projector.")
BASE = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mimo": "Qwen2"}


class HfForward:
    """The transformers model of a folder and what it computes."""

    def __init__(self, folder: str | Path) -> None:
        self.config: HfConfig = read_config(folder)
        self.tensors: Tensors = read_tensors(folder)
        load = LOADERS.get(stored_config(folder)["model_type"], _load_folder)
        self.model = load(folder) if self.loads_itself else _build_dense(self.config, self.tensors)

    @property
    def loads_itself(self) -> bool:
        """Whether transformers loads the folder (and its MTP layers) itself."""
        return bool(num_experts(self.config)) or self.config["model_type"] in DELTA_NET

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Main logits [batch, sequence, vocabulary]."""
        logits: torch.Tensor = self.model(ids).logits
        return logits

    def inverse_frequencies(self) -> torch.Tensor:
        """The rotary frequencies transformers derives from the config, scaling included."""
        rotary = self.model.get_decoder().rotary_emb
        frequencies: torch.Tensor = getattr(rotary, "inv_freq", None)
        return rotary.full_attention_inv_freq if frequencies is None else frequencies

    @torch.no_grad()
    def mtp_logits(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every MTP depth k, [batch, sequence - 1 - k, vocabulary]: entry t predicts token t + 2 + k."""
        if self.loads_itself:
            return _transformers_mtp(self.model, mtp_layers(self.config), ids)
        return _mimo_mtp(self.model, self.config, self.tensors, ids)


def _build_dense(config: HfConfig, tensors: Tensors) -> Any:
    """The transformers model with exactly these tensors; MiMo without its MTP layers is a Qwen2 model."""
    import transformers

    base = BASE[config["model_type"]]
    dropped = ("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
    settings = {key: value for key, value in config.items() if key not in dropped}
    made = getattr(transformers, f"{base}Config")(**settings, attn_implementation="eager")
    with torch.device("meta"):
        model = getattr(transformers, f"{base}ForCausalLM")(made)
    # The rotary table is no weight: to_empty would leave it undefined, so it is made anew from the config.
    model = model.to_empty(device="cpu").float().eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(made)
    weights = {name: t.float() for name, t in tensors.items() if not name.startswith("model.mtp_layers.")}
    if is_tied(config):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    return model


def _load_ling(folder: str | Path) -> Any:
    """A Ling folder as `sarvam_moe`, which stands for its architecture in transformers."""
    config = stored_config(folder) | {"model_type": "sarvam_moe", "architectures": ["Glm4MoeForCausalLM"]}
    return _load_folder(_renamed(folder, config, ".final_layernorm."))


def _load_step(folder: str | Path) -> Any:
    """A Step-3.5 folder as the language model of Step-3.7."""
    text = stored_config(folder)
    heads = {"num_attention_heads": text["attention_other_setting"]["num_attention_heads"]}
    text["mtp_per_layer_config"] = dict.fromkeys(range(text["num_nextn_predict_layers"]), heads)
    vision = {"width": 8, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14, "mlp_ratio": 1.0}
    config = {"model_type": "step3p7", "text_config": text, "vision_config": vision}
    return _load_folder(_renamed(folder, config, ".transformer.shared_head.norm."), "AutoModelForImageTextToText")


def _renamed(folder: str | Path, config: HfConfig, last_norm: str) -> Path:
    """A copy of the folder under another config, its MTP layers' last norm named as transformers' MtpModel reads it.

    transformers knows all other names of these releases.
    """
    tensors = {name.replace(last_norm, ".shared_head.norm."): t for name, t in stored_tensors(folder).items()}
    copy = Path(tempfile.mkdtemp(dir=Path(folder).parent))
    (copy / "config.json").write_text(json.dumps(config))
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy


def _load_folder(folder: str | Path, auto: str = "AutoModelForCausalLM") -> Any:
    """transformers packs the experts while it loads, so it loads the folder itself; only MTP tensors may be left over."""
    import transformers

    loader: Any = getattr(transformers, auto)
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    model, info = loader.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    layers = model.config.get_text_config().num_hidden_layers
    mtp = ("mtp.", *(f"model.layers.{layers + i}." for i in range(2)))
    left_over = [name for name in info["unexpected_keys"] if not name.startswith(mtp)]
    missing = [name for name in info["missing_keys"] if not name.startswith(OTHER_TOWERS)]
    if missing or left_over or info["mismatched_keys"]:
        raise ValueError(f"transformers did not load {folder} as it is: {info}")
    return model.eval()


LOADERS = {"bailing_moe": _load_ling, "step3p5": _load_step}


def _transformers_mtp(main: Any, depths: int, ids: torch.Tensor) -> list[torch.Tensor]:
    """transformers' MtpModel, driven over a whole sequence at once as its own generation drives it over a prompt.

    Two things keep it from a tiny model: the class's pattern of MTP keys holds the layer number of the release, and the
    configs of GLM-4.7-Flash and of Qwen do not declare their MTP layers in transformers' words.
    """
    from transformers.modeling_layers import MtpModel

    first = main.config.get_text_config().num_hidden_layers
    main._keys_to_ignore_on_load_unexpected = [
        r"^mtp\..*",
        *(rf"model\.layers\.{i}\..*" for i in range(first, first + depths)),
    ]
    if not hasattr(main.config.get_text_config(), "num_mtp_layers"):
        main.config.num_mtp_layers = depths
        main.config.mtp_mlp_layer_types = ["sparse"] * depths
        main.config.mtp_layer_types = ["full_attention"] * depths
    mtp: Any = MtpModel.from_pretrained(main)
    mtp.eval()
    hidden = main.get_decoder()(ids).last_hidden_state
    found = []
    for k in range(depths):
        # GLM-5's layers return their choice of keys as well, which MtpModel does not expect.
        mtp.layers[k].mtp_block.register_forward_hook(lambda _, __, out: out[0] if isinstance(out, tuple) else out)
        positions = torch.arange(k + 1, ids.shape[1])[None]
        hidden = mtp.forward_layer(k, hidden[:, :-1], positions, None, input_ids=ids[:, k + 1 :])
        found.append(mtp.shared_head(hidden))
    return found


def _mimo_mtp(main: Any, config: HfConfig, tensors: Tensors, ids: torch.Tensor) -> list[torch.Tensor]:
    """MiMo's MTP layers in their own order.

    h is the main model's hidden state of t after the final norm (or the depth before's, after its own), e the embedding of
    token t + 1 + k, and the layer reads [norm(h), norm(e)] at rotary position t. Every position sees itself and what is
    before.
    """
    hidden = main.model(ids).last_hidden_state
    eps, found = config["rms_norm_eps"], []
    for k in range(mtp_layers(config)):
        prefix = f"model.mtp_layers.{k}."
        weights = {name.removeprefix(prefix): t.float() for name, t in tensors.items() if name.startswith(prefix)}
        embedding = main.model.embed_tokens(ids[:, k + 1 :])
        both = [
            rms_norm(hidden[:, :-1], weights.pop("hidden_layernorm.weight"), eps),
            rms_norm(embedding, weights.pop("token_layernorm.weight"), eps),
        ]
        x = torch.cat(both, -1) @ weights.pop("input_proj.weight").T
        final_norm = weights.pop("final_layernorm.weight")
        hidden = rms_norm(_qwen2_layer(main, weights, x), final_norm, eps)
        found.append(main.lm_head(hidden))
    return found


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square normalisation."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _qwen2_layer(main: Any, weights: Tensors, x: torch.Tensor) -> torch.Tensor:
    """One Qwen2 decoder layer with these weights over positions 0..S-1, causal."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

    layer = Qwen2DecoderLayer(main.config, 0).eval()
    layer.load_state_dict(weights, strict=True)
    size = x.shape[1]
    positions = torch.arange(size)[None]
    causal = torch.full((1, 1, size, size), float("-inf")).triu(1)
    rotary = main.model.rotary_emb(x, positions)
    result: torch.Tensor = layer(x, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
    return result
