"""What servers make of a head: their classes, the architecture strings that lead to them, the names that they read.

SGLang 0.5.23 (configs/model_config.py, models/*). vLLM 0.33.0 as the files of its wheel say, read and not run
(model_executor/models: registry.py, llama_eagle.py, llama_eagle3.py, qwen3_eagle3.py, deepseek_eagle3.py, utils.py;
config/speculative.py; transformers_utils/configs: eagle.py, speculators/algos.py; v1/worker/gpu/spec_decode/eagle).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .formats.base import AUX_IDS, LAYER_CONFIG, NUM_AUX, eagle_config, nested
from .formats.eagle_names import AUX_NORM_ALIASES, INPUT_NORM, LAYER_NORM, MIDLAYER, QK_NORM, at_layer
from .spec import D2T, EAGLE, EAGLE3, EMBED, FC_BIAS, HEAD, MTP, T2D, DraftSpec

SGLANG, VLLM = "sglang", "vllm"
SERVERS = (SGLANG, VLLM)


@dataclass(frozen=True, slots=True)
class ServerClass:
    """A class that loads heads. `leads` are prefixes of names that it reads, `midlayer` whether that is layer 0 to it.

    `ignored` are canonical tensors that it never reads, `replaced` those that it reads and then takes from the target,
    `required` those that it leaves unset without a word where the format calls them optional, `absent` those that it has no
    place for. `keys` are config keys without which it does not start. `stops`: at a name that it does not know, loading ends
    with an error; otherwise the tensor is dropped without a word.
    """

    name: str
    kind: str
    leads: tuple[str, ...] = ("",)
    midlayer: bool = False
    ignored: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    stops: bool = False


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
    "BailingMoeForCausalLM": "BailingMoeForCausalLMNextN",
    "BailingMoeV2ForCausalLM": "BailingMoeForCausalLMNextN",
    "Step3p5ForCausalLM": "Step3p5MTP",
    "NemotronHForCausalLM": "NemotronHForCausalLMMTP",
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

# vLLM puts "model." before every name but lm_head and d2t, so names must not bring it; `midlayer.` becomes `layers.0.`.
FIRST_NORM = at_layer(0, LAYER_NORM)
VLLM_LLAMA = ServerClass(
    "EagleLlamaForCausalLM", EAGLE, replaced=(EMBED,), absent=(FC_BIAS, HEAD, FIRST_NORM), stops=True
)
VLLM_LLAMA3 = ServerClass(
    "Eagle3LlamaForCausalLM",
    EAGLE3,
    midlayer=True,
    ignored=(T2D,),
    absent=(FC_BIAS, *(at_layer(0, name) for name in QK_NORM), *AUX_NORM_ALIASES.values()),
    stops=True,
)
VLLM_QWEN3 = ServerClass(
    "Eagle3Qwen3ForCausalLM",
    EAGLE3,
    midlayer=True,
    ignored=(T2D,),
    required=tuple(at_layer(0, name) for name in QK_NORM),
    absent=(FC_BIAS, *AUX_NORM_ALIASES.values()),
    stops=True,
)
VLLM_LATENT3 = ServerClass(
    "Eagle3DeepseekV2ForCausalLM", EAGLE3, midlayer=True, ignored=(T2D,), absent=(FC_BIAS, INPUT_NORM), stops=True
)
# vLLM puts "Eagle" or "Eagle3" before what config.json says, unless it stands there.
VLLM_EAGLE: Mapping[str, Mapping[str, ServerClass]] = {
    EAGLE: {"LlamaForCausalLM": VLLM_LLAMA, "EagleLlamaForCausalLM": VLLM_LLAMA},
    EAGLE3: {
        "LlamaForCausalLM": VLLM_LLAMA3,
        "Eagle3LlamaForCausalLM": VLLM_LLAMA3,
        "LlamaForCausalLMEagle3": VLLM_LLAMA3,
        "Qwen3ForCausalLM": VLLM_QWEN3,
        "Eagle3Qwen3ForCausalLM": VLLM_QWEN3,
        "Eagle3MiniMaxM2ForCausalLM": VLLM_LLAMA3,
        "Eagle3Qwen2_5vlForCausalLM": VLLM_LLAMA3,
        "Eagle3Qwen3vlForCausalLM": VLLM_LLAMA3,
        "Eagle3DeepseekV2ForCausalLM": VLLM_LATENT3,
        "Eagle3DeepseekV3ForCausalLM": VLLM_LATENT3,
    },
}
# It gives speculators' heads a class by the type of their layer, whatever they call themselves; MTP heads of that form none.
SPECULATORS = ("Eagle3DraftModel", "Eagle3Speculator")
VLLM_SPECULATORS: Mapping[str, ServerClass] = {"llama": VLLM_LLAMA3, "qwen3": VLLM_QWEN3}
# vLLM turns the target's model_type into an MTP class (config/speculative.py).
VLLM_MTP: Mapping[str, str] = {
    "deepseek_v3": "DeepSeekMTP",
    "deepseek_v32": "DeepseekV32MTP",
    "glm_moe_dsa": "DeepseekV32MTP",
    "glm4_moe": "Glm4MoeMTP",
    "glm4_moe_lite": "Glm4MoeLiteMTP",
    "mimo": "MiMoMTP",
    "mimo_v2": "MiMoV2MTP",
    "mimo_v2_flash": "MiMoV2MTP",
    "qwen3_next": "Qwen3NextMTP",
    "qwen3_5": "Qwen3_5MTP",
    "qwen3_5_text": "Qwen3_5MTP",
    "qwen3_5_moe": "Qwen3_5MoeMTP",
    "qwen3_5_moe_text": "Qwen3_5MoeMTP",
}


def architectures(server: str, spec: DraftSpec) -> tuple[str, ...]:
    """The strings that config.json may hold for this head, the best first."""
    if spec.kind == MTP:
        return tuple(SGLANG_MTP)
    if server == VLLM:
        return SPECULATORS if layer_type(spec) else tuple(VLLM_EAGLE[spec.kind])
    fitting = [known for known in SGLANG_EAGLE if known.kind == spec.kind]
    special = spec.mla is not None if spec.kind == EAGLE3 else spec.qkv_bias
    return (fitting[1 if special else 0].name,)


def every_architecture(server: str) -> tuple[str, ...]:
    """Whatever the server loads heads by."""
    eagle = (
        [known.name for known in SGLANG_EAGLE]
        if server == SGLANG
        else [name for names in VLLM_EAGLE.values() for name in names]
    )
    return (*dict.fromkeys(eagle), *SGLANG_MTP)


def class_of(spec: DraftSpec, server: str = SGLANG) -> ServerClass | None:
    """The server's class for a head by its architecture string; None if there is none."""
    if server == VLLM:
        if spec.kind == MTP:
            named = VLLM_MTP.get(str(spec.config.get("model_type")))
            return ServerClass(named, MTP) if named else None
        kind = layer_type(spec)
        return VLLM_SPECULATORS.get(kind) if kind else VLLM_EAGLE[spec.kind].get(spec.architecture)
    if spec.kind == MTP:
        name = SGLANG_MTP.get(spec.architecture)
        return ServerClass(name, MTP, keys=(MTP_COUNT,) if name in COUNTED else ()) if name else None
    return next((known for known in SGLANG_EAGLE if known.name == spec.architecture), None)


def layer_type(spec: DraftSpec) -> str:
    """The model type of the decoder layer of an EAGLE-3 head in speculators' form, "" for any other head."""
    layer = nested(spec.config, LAYER_CONFIG) if spec.kind == EAGLE3 else {}
    return str(layer.get("model_type", "llama")) if layer else ""


def vllm_features(spec: DraftSpec) -> int:
    """How many states of the target vLLM makes `fc` for; only its class for Qwen3 layers counts ids at the top level."""
    seen = nested(spec.config, LAYER_CONFIG) or spec.config
    known = class_of(spec, VLLM)
    if isinstance(stated := seen.get(NUM_AUX), int):
        return stated
    ids = eagle_config(seen).get(AUX_IDS)
    if known is VLLM_QWEN3:
        ids = spec.config.get(AUX_IDS) or ids
    return len(ids) if isinstance(ids, list) and ids else 3


def reads(known: ServerClass, canonical: str, source: str) -> bool:
    """Whether the class reads a tensor under the name that the head gives it."""
    if canonical in known.absent or source in known.absent:
        return False
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
