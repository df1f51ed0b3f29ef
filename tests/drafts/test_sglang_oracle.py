"""Exports loaded by the real sglang: every parameter that it needs is written, every tensor is used.

Runs where `scripts/sglang_oracle.sh setup` has built its environment; CKPT_TOOLS_SGLANG_ORACLE=1 builds it (minutes, 3 GB).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from make_tiny import make_tiny
from safetensors.torch import load_file, save_file

from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.mtp import extract_draft

from .formats import heads

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "sglang_oracle.sh"
VENV = Path(os.environ.get("SGLANG_VENV", SCRIPT.parents[1] / "build" / "sglang-venv"))
ASKED = os.environ.get("CKPT_TOOLS_SGLANG_ORACLE") == "1"
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(
        not ASKED and not any(VENV.glob(".ready-*")), reason="no sglang environment (scripts/sglang_oracle.sh setup)"
    ),
]

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Make = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """`make` writes the folder; `borrowed` are the parameters that the server takes from the target."""

    make: Make
    architecture: str
    borrowed: tuple[str, ...] = (EMBED, HEAD)
    ignored: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = field(default=())


def eagle(config: dict[str, Any], tensors: heads.Tensors, file: str = "model.safetensors") -> Make:
    def make(out: Path) -> None:
        source = heads.write(out.with_name(out.name + "-source"), config, tensors, file)
        export_draft(source, out, heads.target(out.with_name(out.name + "-target")), Options())

    return make


def trained(head: Path) -> Make:
    def make(out: Path) -> None:
        goal = head
        if head != heads.MTP:
            goal = out.with_name(out.name + "-target")
            goal.mkdir()
            (goal / "config.json").write_text(json.dumps(heads.config_of(head) | {"num_hidden_layers": 30}))
        export_draft(head, out, goal, Options())

    return make


def extracted(family: str, **options: Any) -> Make:
    def make(out: Path) -> None:
        sizes = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "vocab": 64, "experts": 4, **options}
        extract_draft(make_tiny(family, out.with_name(out.name + "-model"), **sizes), out, Options())

    return make


def damaged(make: Make, rename: Callable[[str], str | None]) -> Make:
    """The export with tensors renamed or dropped: what the oracle must notice."""

    def broken(out: Path) -> None:
        make(out)
        tensors = load_file(out / "model.safetensors")
        kept = {new: tensor for name, tensor in tensors.items() if (new := rename(name))}
        save_file(kept, out / "model.safetensors", metadata={"format": "pt"})

    return broken


FOUR = {"use_aux_norm": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}
FOUR_TENSORS = heads.eagle3_tensors(features=4) | heads.random({f"fc_norm.{i}.weight": (heads.H,) for i in range(4)})
EAGLE1 = eagle(heads.llama_config(bias=False), heads.eagle_tensors(), "pytorch_model.bin")
CASES: dict[str, Case] = {
    "trained-eagle": Case(trained(heads.EAGLE), "LlamaForCausalLMEagle"),
    "trained-eagle3": Case(trained(heads.EAGLE3), "LlamaForCausalLMEagle3", (EMBED,)),
    "trained-mtp": Case(trained(heads.MTP), "MiMoMTP"),
    "safeailab-eagle": Case(EAGLE1, "LlamaForCausalLMEagle"),
    "qwen2-eagle": Case(
        eagle(heads.llama_config() | {"model_type": "qwen2"}, heads.eagle_tensors(bias=True)), "Qwen2ForCausalLMEagle"
    ),
    "angelslim": Case(
        eagle(heads.eagle3_config() | {"architectures": ["Eagle3LlamaForCausalLM"]}, heads.eagle3_tensors()),
        "LlamaForCausalLMEagle3",
        (EMBED,),
    ),
    "speculators": Case(
        eagle(heads.speculators_config([2, 4, 5]), heads.eagle3_tensors("layers.0.")),
        "LlamaForCausalLMEagle3",
        (EMBED,),
    ),
    "four-features": Case(eagle(heads.eagle3_config(**FOUR), FOUR_TENSORS), "LlamaForCausalLMEagle3", (EMBED,)),
    "kimi": Case(eagle(heads.latent_config(), heads.latent_tensors()), "Eagle3DeepseekV2ForCausalLM", (EMBED,)),
    "deepseek": Case(extracted("deepseek_v3"), "DeepseekV3ForCausalLMNextN"),
    "deepseek_v32": Case(extracted("deepseek_v32"), "DeepseekV3ForCausalLMNextN"),
    "glm_moe_dsa": Case(extracted("glm_moe_dsa"), "GlmMoeDsaForCausalLMNextN"),
    "glm4_moe_lite": Case(extracted("glm4_moe_lite"), "Glm4MoeLiteForCausalLMNextN"),
    "glm4_moe": Case(extracted("glm4_moe"), "Glm4MoeForCausalLMNextN"),
    "qwen3_next": Case(extracted("qwen3_next", layers=4), "Qwen3NextForCausalLMMTP"),
    "broken-name": Case(
        damaged(EAGLE1, lambda name: f"draft_model.{name}" if name == "fc.weight" else name),
        "LlamaForCausalLMEagle",
        ignored=("draft_model.fc.weight",),
        unwritten=("model.fc.weight",),
    ),
    "broken-bias": Case(
        damaged(EAGLE1, lambda name: None if name == "fc.bias" else name),
        "LlamaForCausalLMEagle",
        unwritten=("model.fc.bias",),
    ),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What sglang did with every case, in one process: its imports take half a minute."""
    if ASKED:
        subprocess.run([SCRIPT, "setup"], check=True)
    root = tmp_path_factory.mktemp("sglang")
    for name, case in CASES.items():
        case.make(root / name)
    ran = subprocess.run(
        [SCRIPT, "check", *(str(root / name) for name in CASES)], capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"folder"')]
    assert len(lines) == len(CASES), ran.stdout + ran.stderr
    shutil.rmtree(root)
    return {Path(line["folder"]).name: line for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_sglang_loads_it(name: str, loaded: dict[str, dict[str, Any]]) -> None:
    case, found = CASES[name], loaded[name]
    assert "error" not in found, found
    assert found["architecture"] == case.architecture
    assert set(found["unwritten"]) == {*case.borrowed, *case.unwritten}
    assert (found["ignored"], found["partial"]) == (list(case.ignored), [])
    assert found["written"] > 5


def test_draft_ids_stand_for_the_right_target_ids(loaded: dict[str, dict[str, Any]]) -> None:
    assert loaded["speculators"]["hot_ids"] == heads.IDS
