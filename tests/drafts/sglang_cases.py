"""Heads for the real sglang: every class that it builds on a CPU, out of every source format, and exports broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from make_tiny import make_tiny
from safetensors.torch import load_file, save_file

from ckpt_tools.convert import Options as ConvertOptions
from ckpt_tools.convert import convert
from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.mtp import extract_draft

from . import mimo_v2
from .formats import heads

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Make = Callable[[Path], Path]  # writes the head into a folder and returns its target


@dataclass(frozen=True)
class Case:
    """`borrowed` are the parameters that the server takes from the target. `ignored` and `unwritten` is what must be noticed
    of a broken export; `codes` are verify-draft's errors, which come without any server."""

    make: Make
    architecture: str
    borrowed: tuple[str, ...] = (EMBED, HEAD)
    ignored: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()


def beside(out: Path, what: str) -> Path:
    return out.with_name(f"{out.name}-{what}")


def exported(config: dict[str, Any], tensors: heads.Tensors, file: str = "model.safetensors", **options: Any) -> Make:
    """A small EAGLE head as its producer writes it."""

    def make(out: Path) -> Path:
        source = heads.write(beside(out, "source"), config, tensors, file)
        goal = heads.target(beside(out, "target"))
        export_draft(source, out, goal, Options(**options))
        return goal

    return make


def trained(head: Path) -> Make:
    """One of the real heads of tests/assets."""

    def make(out: Path) -> Path:
        goal = head
        if head != heads.MTP:
            goal = beside(out, "target")
            goal.mkdir()
            own = heads.config_of(head) | {"num_hidden_layers": 30, "architectures": ["LlamaForCausalLM"]}
            (goal / "config.json").write_text(json.dumps(own))
        export_draft(head, out, goal, Options())
        return goal

    return make


def training_state(out: Path) -> Path:
    """SpecForge's own checkpoint, its draft config given apart."""
    state = heads.write(beside(out, "state"), heads.eagle3_config(norm_output=True), {})
    (state / "model.safetensors").unlink()
    torch.save({"draft_state_dict": heads.eagle3_tensors(), "strategy": "eagle3"}, state / "training_state.pt")
    goal = heads.target(beside(out, "target"))
    export_draft(state, out, goal, Options())
    return goal


def model(out: Path, family: str, **options: Any) -> Path:
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "vocab": 64, "experts": 4, **options}
    return make_tiny(family, beside(out, "model"), **sizes)


def extracted(family: str, **options: Any) -> Make:
    """The MTP layer out of a Hugging Face model."""

    def make(out: Path) -> Path:
        goal = model(out, family, **options)
        extract_draft(goal, out, Options())
        return goal

    return make


def from_megatron(family: str, **options: Any) -> Make:
    """The MTP layer out of a torch-dist checkpoint."""

    def make(out: Path) -> Path:
        goal = model(out, family, **options)
        convert(goal, beside(out, "megatron"), ConvertOptions())
        extract_draft(beside(out, "megatron"), out, Options())
        return goal

    return make


def through_speculators(family: str, **options: Any) -> Make:
    """The MTP layer in speculators' form and out of it again."""

    def make(out: Path) -> Path:
        goal = model(out, family, **options)
        export_draft(goal, beside(out, "theirs"), goal, Options(format="speculators", target_name="some/model"))
        export_draft(beside(out, "theirs"), out, goal, Options())
        return goal

    return make


def mimo_v2_head(**options: Any) -> Make:
    def make(out: Path) -> Path:
        goal = mimo_v2.mtp_model(beside(out, "model"), **options)
        extract_draft(goal, out, Options())
        return goal

    return make


def broken(make: Make, rename: Callable[[str], str | None]) -> Make:
    """The export with tensors renamed or dropped."""

    def spoil(out: Path) -> Path:
        goal = make(out)
        tensors = load_file(out / "model.safetensors")
        kept = {new: tensor for name, tensor in tensors.items() if (new := rename(name))}
        save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
        return goal

    return spoil


def dropped(make: Make, gone: str) -> Make:
    return broken(make, lambda name: None if name == gone else name)


def prefixed(make: Make, lead: str) -> Make:
    return broken(make, lambda name: lead + name)


def renumbered(make: Make, old: str, new: str) -> Make:
    return broken(make, lambda name: name.replace(old, new))


H = heads.H
IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
FOUR = {"use_aux_norm": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}
FOUR_TENSORS = heads.eagle3_tensors(features=4) | heads.random({f"fc_norm.{i}.weight": (H,) for i in range(4)})
NARROW = {"hidden_size": 16, "target_hidden_size": H}
NARROW_TENSORS = heads.eagle3_tensors(h=16) | heads.random({"embed_tokens.weight": (heads.V, 16)})
INPUT_NORM = heads.eagle3_tensors() | heads.random({"input_norm.weight": (3 * H,)})
SECOND = heads.layer("layers.1.", H) | heads.random({"layers.1.input_layernorm.weight": (H,)})
TWO_TENSORS = heads.eagle3_tensors("layers.0.") | SECOND | heads.random({"layers.1.hidden_norm.weight": (H,)})
NO_MASK = {name: tensor for name, tensor in heads.eagle3_tensors("layers.0.").items() if name != "t2d"}
MODELOPT = {"eagle_config": {**IDS["eagle_config"], "use_last_layernorm": True, "parallel_draft_step": 1}}
UNREDUCED = {n: t for n, t in heads.eagle3_tensors().items() if n not in ("d2t", "t2d", "lm_head.weight")}

LLAMA1, QWEN1, LLAMA3 = "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "LlamaForCausalLMEagle3"
DEEPSEEK, QWEN35 = "DeepseekV3ForCausalLMNextN", "Qwen3_5ForCausalLMMTP"
EAGLE1 = exported(heads.llama_config(bias=False), heads.eagle_tensors(), "pytorch_model.bin")
EAGLE3 = exported(heads.eagle3_config(), heads.eagle3_tensors())
TWO_EAGLE1 = (
    heads.eagle_tensors() | heads.layer("layers.1.", H) | heads.random({"layers.1.input_layernorm.weight": (H,)})
)


def renamed(architecture: str, **more: Any) -> dict[str, Any]:
    return heads.eagle3_config(**more) | {"architectures": [architecture]}


EAGLE_CASES: dict[str, Case] = {
    "trained-eagle": Case(trained(heads.EAGLE), LLAMA1),
    "trained-eagle3": Case(trained(heads.EAGLE3), LLAMA3, (EMBED,)),
    "safeailab-eagle": Case(EAGLE1, LLAMA1),
    "eagle-two-layers": Case(exported(heads.llama_config(num_hidden_layers=2), TWO_EAGLE1), LLAMA1),
    "qwen2-eagle": Case(
        exported(heads.llama_config() | {"model_type": "qwen2"}, heads.eagle_tensors(bias=True)), QWEN1
    ),
    "safeailab-eagle3": Case(
        exported(heads.llama_config(draft_vocab_size=heads.DV), heads.eagle3_tensors(), "pytorch_model.bin"),
        LLAMA3,
        (EMBED,),
    ),
    "specforge-state": Case(training_state, LLAMA3, (EMBED,)),
    "specforge-export": Case(
        exported(heads.eagle3_config(norm_output=True), heads.eagle3_tensors(), form="specforge"), LLAMA3, (EMBED,)
    ),
    "angelslim": Case(exported(renamed("Eagle3LlamaForCausalLM"), heads.eagle3_tensors()), LLAMA3, (EMBED,)),
    "modelopt": Case(exported(heads.eagle3_config(**MODELOPT), NO_MASK), LLAMA3, (EMBED,)),
    "sglang": Case(
        exported(heads.eagle3_config(**IDS), {f"model.{n}": t for n, t in heads.eagle3_tensors().items()}),
        LLAMA3,
        (EMBED,),
    ),
    "speculators": Case(
        exported(heads.speculators_config([2, 4, 5]), heads.eagle3_tensors("layers.0.")), LLAMA3, (EMBED,)
    ),
    "four-features": Case(exported(heads.eagle3_config(**FOUR), FOUR_TENSORS), LLAMA3, (EMBED,)),
    "norm-before-fc": Case(exported(heads.eagle3_config(norm_before_fc=True), INPUT_NORM), LLAMA3, (EMBED,)),
    "narrow": Case(exported(heads.eagle3_config(**NARROW), NARROW_TENSORS), LLAMA3, ()),
    "two-layers": Case(exported(heads.eagle3_config(num_hidden_layers=2), TWO_TENSORS), LLAMA3, (EMBED,)),
    "borrowed-lm-head": Case(exported(heads.llama_config(draft_vocab_size=None), UNREDUCED), LLAMA3),
    "kimi": Case(exported(heads.latent_config(), heads.latent_tensors()), "Eagle3DeepseekV2ForCausalLM", (EMBED,)),
}
MTP_CASES: dict[str, Case] = {
    "trained-mtp": Case(trained(heads.MTP), "MiMoMTP"),
    "mimo-megatron": Case(from_megatron("mimo"), "MiMoMTP"),
    "mimo-v2": Case(mimo_v2_head(), "MiMoV2MTP"),
    "mimo-v2-three-fused": Case(mimo_v2_head(layers=3, fused=True), "MiMoV2MTP"),
    "deepseek": Case(extracted("deepseek_v3"), DEEPSEEK),
    "deepseek-megatron": Case(from_megatron("deepseek_v3"), DEEPSEEK),
    "deepseek-fp8": Case(extracted("deepseek_v3", fp8=(16, 16)), DEEPSEEK),
    "deepseek-v32": Case(extracted("deepseek_v32"), DEEPSEEK),
    "glm5": Case(extracted("glm_moe_dsa"), "GlmMoeDsaForCausalLMNextN"),
    "glm5-fp8": Case(extracted("glm_moe_dsa", fp8=(16, 16)), "GlmMoeDsaForCausalLMNextN"),
    "glm4-lite": Case(extracted("glm4_moe_lite"), "Glm4MoeLiteForCausalLMNextN"),
    "glm4": Case(extracted("glm4_moe"), "Glm4MoeForCausalLMNextN"),
    "glm4-megatron": Case(from_megatron("glm4_moe"), "Glm4MoeForCausalLMNextN"),
    "glm4-fp8": Case(extracted("glm4_moe", fp8=(16, 16)), "Glm4MoeForCausalLMNextN"),
    "qwen3-next": Case(extracted("qwen3_next", layers=4), "Qwen3NextForCausalLMMTP"),
    "qwen3-next-megatron": Case(from_megatron("qwen3_next", layers=4), "Qwen3NextForCausalLMMTP"),
    "qwen3-next-speculators": Case(through_speculators("qwen3_next", layers=4), "Qwen3NextForCausalLMMTP"),
    "qwen3-next-fp8": Case(extracted("qwen3_next", layers=4, fp8=(4, 4)), "Qwen3NextForCausalLMMTP"),
    "qwen3.5": Case(extracted("qwen3_5", layers=4), QWEN35),
    "qwen3.5-text": Case(extracted("qwen3_5_text", layers=4), QWEN35),
    "qwen3.5-moe": Case(extracted("qwen3_5_moe", layers=4), QWEN35),
    "qwen3.5-moe-packed": Case(extracted("qwen3_5_moe", layers=4, mtp_experts="packed"), QWEN35),
    "qwen3.5-moe-megatron": Case(from_megatron("qwen3_5_moe_text", layers=4), QWEN35),
    "qwen3.5-moe-speculators": Case(through_speculators("qwen3_5_moe_text", layers=4), QWEN35),
    "qwen3.5-moe-fp8": Case(extracted("qwen3_5_moe", layers=4, fp8=(4, 4)), QWEN35),
}
FC, MID = "model.fc.weight", "model.layers.0.mlp.down_proj.weight"
BROKEN_CASES: dict[str, Case] = {
    "broken-name": Case(
        broken(EAGLE1, lambda name: f"draft_model.{name}" if name == "fc.weight" else name),
        LLAMA1,
        ignored=("draft_model.fc.weight",),
        unwritten=(FC,),
        codes=("tensors-never-loaded", "tensors-never-set"),
    ),
    "broken-bias": Case(dropped(EAGLE1, "fc.bias"), LLAMA1, unwritten=("model.fc.bias",), codes=("tensors-never-set",)),
    "broken-eagle3": Case(
        dropped(EAGLE3, "midlayer.mlp.down_proj.weight"),
        LLAMA3,
        (EMBED,),
        unwritten=(MID,),
        codes=("tensors-missing", "tensors-never-set"),
    ),
    "broken-mtp": Case(
        dropped(extracted("qwen3_5", layers=4), "mtp.fc.weight"),
        QWEN35,
        unwritten=("fc.weight",),
        codes=("tensors-missing",),
    ),
    "broken-scale": Case(
        dropped(extracted("glm4_moe", fp8=(16, 16)), "model.layers.2.self_attn.o_proj.weight_scale_inv"),
        "Glm4MoeForCausalLMNextN",
        unwritten=("model.decoder.self_attn.o_proj.weight_scale_inv",),
        codes=("scale-missing",),
    ),
}
CASES = EAGLE_CASES | MTP_CASES | BROKEN_CASES
# Exports of which nothing at all reaches the class.
LOST_CASES: dict[str, Case] = {
    "lost-prefix": Case(prefixed(EAGLE3, "draft_model."), LLAMA3, codes=("tensors-never-loaded",)),
    "lost-index": Case(
        renumbered(extracted("glm4_moe"), "model.layers.2.", "model.layers.7."),
        "Glm4MoeForCausalLMNextN",
        codes=("mtp-index",),
    ),
}


def make_all(root: Path) -> dict[str, Path]:
    """Write every case into `root`; its target by name."""
    return {name: case.make(root / name) for name, case in (CASES | LOST_CASES).items()}
