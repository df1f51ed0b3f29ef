"""What servers make of a head: their classes, the architecture strings that lead to them, the names that they read.

SGLang 0.5.23 (configs/model_config.py, models/*); vLLM 0.11 and later (model_executor/models/registry.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .formats.eagle_names import AUX_NORM_ALIASES, LAYER_NORM, MIDLAYER, at_layer
from .spec import D2T, EAGLE, EAGLE3, EMBED, FC_BIAS, HEAD, MTP, T2D, DraftSpec

SGLANG, VLLM = "sglang", "vllm"
SERVERS = (SGLANG, VLLM)


@dataclass(frozen=True, slots=True)
class ServerClass:
    """A class that loads heads. `leads` are prefixes of names that it reads, `midlayer` whether that is layer 0 to it.

    `ignored` are canonical tensors that it never reads, `replaced` those that it reads and then takes from the target,
    `required` those that it leaves unset without a word where the format calls them optional.
    `keys` are config keys without which it does not start.
    """

    name: str
    kind: str
    leads: tuple[str, ...] = ("",)
    midlayer: bool = False
    ignored: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


SGLANG_EAGLE: tuple[ServerClass, ...] = (
    ServerClass("LlamaForCausalLMEagle", EAGLE, ("",), False, (HEAD, at_layer(0, LAYER_NORM)), (EMBED,), (FC_BIAS,)),
    ServerClass("Qwen2ForCausalLMEagle", EAGLE, ("",), False, (HEAD, at_layer(0, LAYER_NORM)), (EMBED,), (FC_BIAS,)),
    ServerClass("LlamaForCausalLMEagle3", EAGLE3, ("", "model."), True, (T2D,), keys=("draft_vocab_size",)),
    ServerClass("Eagle3DeepseekV2ForCausalLM", EAGLE3, ("",), True, (T2D,), keys=("draft_vocab_size", "q_lora_rank")),
)

# SGLang turns the target's architecture into its MTP class when the model is a draft.
SGLANG_MTP: Mapping[str, str] = {
    "DeepseekV3ForCausalLM": "DeepseekV3ForCausalLMNextN",
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLMNextN",
    "GlmMoeDsaForCausalLM": "GlmMoeDsaForCausalLMNextN",
    "Glm4MoeForCausalLM": "Glm4MoeForCausalLMNextN",
    "Glm4MoeLiteForCausalLM": "Glm4MoeLiteForCausalLMNextN",
    "MiMoForCausalLM": "MiMoMTP",
    "MiMoV2FlashForCausalLM": "MiMoV2MTP",
    "MiMoV2ForCausalLM": "MiMoV2MTP",
    "Ernie4_5_MoeForCausalLM": "Ernie4_5_MoeForCausalLMMTP",
    "Qwen3NextForCausalLM": "Qwen3NextForCausalLMMTP",
    "Qwen3MoeForCausalLM": "Qwen3MoeForCausalLMMTP",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5ForCausalLM": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5MoeForCausalLM": "Qwen3_5ForCausalLMMTP",
}
SEVERAL_LAYERS = ("MiMoV2MTP",)  # the other classes hold one MTP layer: an assertion, or the last one wins
# Classes whose loader stops without this count in config.json (deepseek_common/deepseek_weight_loader.py).
COUNTED = (
    "DeepseekV3ForCausalLMNextN",
    "GlmMoeDsaForCausalLMNextN",
    "Glm4MoeForCausalLMNextN",
    "Glm4MoeLiteForCausalLMNextN",
)
MTP_COUNT = "num_nextn_predict_layers"

# vLLM puts "Eagle" or "Eagle3" before what config.json says, unless it stands there (transformers_utils/configs/eagle.py).
VLLM_EAGLE: Mapping[str, tuple[str, ...]] = {
    EAGLE: ("LlamaForCausalLM", "EagleLlamaForCausalLM"),
    EAGLE3: (
        "LlamaForCausalLM",
        "Eagle3LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Eagle3DeepseekV2ForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
    ),
}


def architectures(server: str, spec: DraftSpec) -> tuple[str, ...]:
    """The strings that config.json may hold for this head, the best first."""
    if spec.kind == MTP:
        return tuple(SGLANG_MTP)
    if server == VLLM:
        return VLLM_EAGLE[spec.kind]
    fitting = [known for known in SGLANG_EAGLE if known.kind == spec.kind]
    special = spec.mla is not None if spec.kind == EAGLE3 else spec.qkv_bias
    return (fitting[1 if special else 0].name,)


def every_architecture(server: str) -> tuple[str, ...]:
    """Whatever the server loads heads by."""
    eagle = (
        [known.name for known in SGLANG_EAGLE]
        if server == SGLANG
        else [n for names in VLLM_EAGLE.values() for n in names]
    )
    return (*dict.fromkeys(eagle), *SGLANG_MTP)


def class_of(spec: DraftSpec) -> ServerClass | None:
    """SGLang's class for a head by its architecture string; None if there is none."""
    if spec.kind == MTP:
        name = SGLANG_MTP.get(spec.architecture)
        return ServerClass(name, MTP, keys=(MTP_COUNT,) if name in COUNTED else ()) if name else None
    return next((known for known in SGLANG_EAGLE if known.name == spec.architecture), None)


def reads(known: ServerClass, canonical: str, source: str) -> bool:
    """Whether the class reads a tensor under the name that the head gives it."""
    if known.kind == MTP:
        return source == canonical
    if canonical in (HEAD, D2T):
        return source == canonical
    return source in {lead + spelling for lead in known.leads for spelling in _spellings(known, canonical)}


def _spellings(known: ServerClass, canonical: str) -> tuple[str, ...]:
    first = at_layer(0, "")
    if canonical in AUX_NORM_ALIASES:
        return (canonical, AUX_NORM_ALIASES[canonical])
    if known.midlayer and canonical.startswith(first):
        return (canonical, MIDLAYER + canonical.removeprefix(first))
    return (canonical,)
