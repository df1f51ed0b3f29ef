"""verify-draft over quantised targets and targets that are not the recorded one (E4, L2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ckpt_tools.drafts.identity import identify, record
from ckpt_tools.drafts.manifest import MANIFEST, Manifest, Provenance, TargetRef, write_manifest
from ckpt_tools.model import open_model
from tests.checkpoints import changed, changed_config
from tests.conftest import Tiny
from tests.drafts.conftest import Run, severities
from tests.drafts.heads import eagle3, target, write_config, write_tokenizer

QUANTISED = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize(
    ("ignored", "missing"),
    [
        (["model.mtp_layers.0*"], None),
        (["model.mtp_layers.0"], None),
        (["re:.*mtp_layers.*"], None),
        (["model.mtp_layers.0.self_attn*", "model.mtp_layers.0.mlp*"], "model.mtp_layers.0.input_proj"),
        ([], "model.mtp_layers.0.mlp.down_proj"),
    ],
)
def test_e4_the_exclude_list(verify: Run, tiny: Tiny, ignored: list[str], missing: str | None) -> None:
    """A bf16 MTP layer in a quantised target: the list must name every module of it."""
    folder = tiny("mimo")
    with changed_config(folder) as config:
        config["quantization_config"] = {**QUANTISED, "ignore": ignored}
    ran = verify(folder, folder, code=int(missing is not None))
    if missing:
        found = ran.finding("quant-exclude")
        assert f'"{missing}"' in found["fix"] and found["fix"].startswith("add to ignore")
    else:
        assert "quant-exclude" not in ran.codes


def test_e4_listed_but_quantised(verify: Run, tiny: Tiny) -> None:
    folder = tiny("mimo")
    with changed_config(folder) as config:
        config["quantization_config"] = {**QUANTISED, "ignore": ["model.mtp_layers.0*"]}
    name = "model.mtp_layers.0.mlp.down_proj.weight"
    with changed(folder / "model.safetensors") as tensors:
        tensors[name + "_scale"] = torch.ones(1)
    ran = verify(folder, folder, code=1)
    assert name.removesuffix(".weight") in ran.finding("quant-exclude")["actual"]


def recorded(head: Path, model: Path) -> None:
    """A manifest as export-draft leaves it."""
    found = open_model(model)
    reference = TargetRef(ref="org/model", identity=record(identify(found, "sampled")))
    made = Provenance(source="run", source_format="sglang", trained=False, tensors=1)
    write_manifest(
        head,
        Manifest(
            written_by="test",
            format="sglang",
            kind="eagle3",
            architecture="LlamaForCausalLMEagle3",
            target=reference,
            provenance=made,
            files={},
        ),
    )


def test_l2_the_target_moved(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target", weights=True), eagle3(tmp_path / "head")
    write_tokenizer(model, 32)
    assert "target-not-recorded" in verify(head, model, "--strict-target", code=1).codes
    recorded(head, model)
    ran = verify(head, model, "--strict-target")
    (line,) = [check for check in ran.result["checks"] if check["name"] == "recorded target"]
    assert line["actual"] == "architecture, tokenizer, weights equal" and ran.codes == []
    with changed(model / "model.safetensors") as tensors:
        tensors["model.layers.3.mlp.up_proj.weight"][0, 0] += (
            1e-3 + tensors["model.layers.3.mlp.up_proj.weight"][0, 0].abs()
        )
    assert severities(verify(head, model)) == {"target-weights-changed": "warning"}
    assert severities(verify(head, model, "--strict-target", code=1)) == {"target-weights-changed": "error"}
    write_tokenizer(model, 31)
    assert severities(verify(head, model, code=1))["target-tokenizer-changed"] == "error"


def test_l2_another_architecture(verify: Run, tmp_path: Path) -> None:
    """Whatever else fits: the field is named."""
    model, head = target(tmp_path / "target", weights=True), eagle3(tmp_path / "head")
    recorded(head, model)
    other = target(tmp_path / "other", intermediate_size=24)
    found = verify(head, other, code=1).finding("target-arch-changed")
    assert "intermediate_size" in found["what"] and ("16" in found["expected"] and "24" in found["actual"])
    assert (
        "target-weights-unchecked"
        in verify(head, write_config(tmp_path / "config", json.loads((model / "config.json").read_text()))).codes
    )
    (head / MANIFEST).write_text("{")
    assert verify(head, model, code=3).codes == ["manifest-unreadable"]
