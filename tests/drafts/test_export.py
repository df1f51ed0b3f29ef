"""export-draft from trained and foreign sources, and its command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ckpt_tools.convert import Options as ConvertOptions
from ckpt_tools.convert import convert
from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.manifest import read_manifest
from ckpt_tools.drafts.merge import merge_draft
from ckpt_tools.drafts.mtp import extract_draft
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError, NotFound
from tests.checkpoints import assert_same, changed, config_of, hf_tensors, iteration
from tests.conftest import Command, Tiny

from . import heads as verified
from .formats import heads


def test_the_trained_head_wins_over_the_targets_copy(tiny: Tiny, tmp_path: Path) -> None:
    """Megatron holds 3.0 everywhere, the target's own pretrained head 1.0; the iteration may lack its config."""
    model = tiny("mimo", shards=2)
    for value, folder in ((3.0, Path(shutil.copytree(model, tmp_path / "trained"))), (1.0, model)):
        for path in folder.glob("*.safetensors"):
            with changed(path) as tensors:
                for name in list(tensors):
                    tensors[name] = torch.full_like(tensors[name], value)
    convert(tmp_path / "trained", tmp_path / "megatron", ConvertOptions())
    shutil.rmtree(iteration(tmp_path / "megatron") / "hf")
    result, _ = export_draft(tmp_path / "megatron", tmp_path / "head", model, Options())
    written = hf_tensors(tmp_path / "head")
    assert len(written) == result.tensors == 16
    assert all(bool((tensor == 3.0).all()) for tensor in written.values())
    manifest = read_manifest(tmp_path / "head")
    assert manifest.provenance.trained and manifest.provenance.tensors == 16 and manifest.provenance.made == []


@pytest.mark.parametrize(
    ("family", "stored"),
    [("qwen3_next", None), ("qwen3_5_moe_text", "packed"), ("qwen3_5_moe_text", "per-expert"), ("qwen3_5_text", None)],
)
def test_mtp_through_speculators_and_back(family: str, stored: str | None, tiny: Tiny, tmp_path: Path) -> None:
    """Experts are packed on the way and come apart again, bit by bit, wherever the release stores them one by one."""
    model = tiny(family, layers=4, mtp_experts=stored)
    export_draft(model, tmp_path / "theirs", model, Options(format="speculators", target_name="org/model"))
    theirs = hf_tensors(tmp_path / "theirs")
    ours = {name: tensor for name, tensor in hf_tensors(model).items() if name.startswith("mtp.")}
    assert torch.equal(theirs["mtp_layers.0.input_proj.weight"], ours["mtp.fc.weight"])
    assert torch.equal(theirs["mtp_layers.0.token_layernorm.weight"], ours["mtp.pre_fc_norm_embedding.weight"])
    assert torch.equal(theirs["mtp_layers.0.hidden_layernorm.weight"], ours["mtp.pre_fc_norm_hidden.weight"])
    first = "mtp.layers.0.mlp.experts.0."
    if first + "gate_proj.weight" in ours:
        both = torch.cat([ours[first + "gate_proj.weight"], ours[first + "up_proj.weight"]])
        assert torch.equal(theirs["mtp_layers.0.mlp.experts.gate_up_proj"][0], both)
        assert torch.equal(theirs["mtp_layers.0.mlp.experts.down_proj"][0], ours[first + "down_proj.weight"])
    config = config_of(tmp_path / "theirs")
    assert (config["speculators_model_type"], config["architectures"]) == ("mtp", ["MTPDraftModel"])
    assert open_draft(tmp_path / "theirs").verifier == "org/model"
    merge_draft(model, tmp_path / "theirs", tmp_path / "merged", Options())
    assert_same(hf_tensors(tmp_path / "merged"), hf_tensors(model))


def test_speculators_has_no_names_for_other_families(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("mimo")
    with pytest.raises(CkptError) as failure:
        export_draft(model, tmp_path / "out", model, Options(format="speculators", target_name="a/b"))
    assert failure.value.findings[0].code == "format-cannot-express"


def test_a_training_state_needs_its_config(tmp_path: Path) -> None:
    state = tmp_path / "run-step7"
    state.mkdir()
    saved = {"draft_state_dict": heads.eagle3_tensors(), "strategy": "eagle3", "global_step": 7}
    torch.save(saved, state / "training_state.pt")
    goal = heads.target(tmp_path / "target")
    with pytest.raises(NotFound) as failure:
        export_draft(state, tmp_path / "out", goal, Options())
    assert failure.value.findings[0].code == "config-not-found"
    config = heads.write(tmp_path / "config", heads.eagle3_config(norm_output=True), {}) / "config.json"
    for source in (state, state / "training_state.pt"):
        result, _ = export_draft(source, tmp_path / "out", goal, Options(hf_config=config, overwrite=True))
        assert result.source_format == "specforge"
    assert "norm_output" not in heads.config_of(tmp_path / "out")  # SpecForge feeds the raw state, as SGLang then does
    assert_same(heads.tensors_of(tmp_path / "out"), heads.eagle3_tensors())


def test_the_target_is_no_head(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(CkptError) as failure:
        export_draft(model, tmp_path / "out", model, Options())
    assert failure.value.findings[0].code == "not-a-draft-head"


def test_large_heads_are_sharded(tmp_path: Path) -> None:
    head = heads.write(tmp_path / "head", heads.eagle3_config(), heads.eagle3_tensors())
    result, _ = export_draft(head, tmp_path / "out", heads.target(tmp_path / "target"), Options(max_shard_size=9000))
    assert result.files == len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert_same(heads.tensors_of(tmp_path / "out"), heads.eagle3_tensors())
    assert open_draft(tmp_path / "out").errors == ()


def test_only_our_own_folders_are_replaced(tiny: Tiny, tmp_path: Path, command: Command) -> None:
    model, out = tiny("mimo"), tmp_path / "out"
    extract_draft(model, out, Options())
    command("export-draft", model, out, "--target", model, "--overwrite")
    other = tiny("mimo")
    assert command("export-draft", model, other, "--target", model, "--overwrite", "--json", code=5).codes == [
        "output-exists"
    ]


def test_the_command(tmp_path: Path, command: Command) -> None:
    head = heads.write(tmp_path / "head", heads.eagle3_config(), heads.eagle3_tensors())
    goal, out = heads.target(tmp_path / "target"), tmp_path / "out"
    ran = command("export-draft", head, out, "--target", goal, "--json")
    assert (ran.result["kind"], ran.result["architecture"]) == ("eagle3", "LlamaForCausalLMEagle3")
    assert "draft-context-short" in ran.codes
    spoken = command("export-draft", head, out, "--target", goal, "--overwrite", "--format", "speculators")
    assert "verifier-unnamed" in spoken.err and "speculators" in spoken.out
    command("export-draft", head, tmp_path / "x", "--target", goal, "--from", "nobody", code=2)
    command("export-draft", head, tmp_path / "x", code=2)


def test_the_command_verifies_before_the_folder_gets_its_name(tmp_path: Path, command: Command) -> None:
    """Absolute ids where offsets belong run out of the vocabulary: nothing is left, unless one insists."""
    tensors = heads.eagle3_tensors()
    tensors["d2t"] = torch.tensor(heads.IDS)
    head = heads.write(tmp_path / "head", heads.eagle3_config(), tensors)
    goal, out = heads.target(tmp_path / "target"), tmp_path / "out"
    ran = command("export-draft", head, out, "--target", goal, "--json", code=1)
    assert ran.codes and not out.exists() and not (tmp_path / "out.partial").exists()
    command("export-draft", head, out, "--target", goal, "--no-verify")
    assert out.is_dir()
    good = heads.write(tmp_path / "good", heads.eagle3_config(), heads.eagle3_tensors())
    ran = command("export-draft", good, tmp_path / "fine", "--target", goal, "--json")
    assert ran.result["verified"] is True
    assert read_manifest(tmp_path / "fine").target.identity["arch_hash"].startswith("arch-")


def test_a_table_of_its_own_is_not_left_out_in_silence(tmp_path: Path, command: Command) -> None:
    """G6, G9: SGLang puts the target's embedding in place of the head's. An equal copy is left out, another one refused."""
    model = verified.target(tmp_path / "target", weights=True)
    embedding = hf_tensors(model)["model.embed_tokens.weight"]
    for name, table, code in (("copy", embedding, 0), ("own", embedding + 1, 1)):
        head = verified.eagle3(tmp_path / name)
        with changed(head / "model.safetensors") as tensors:
            tensors["embed_tokens.weight"] = table
        ran = command("export-draft", head, tmp_path / f"{name}-out", "--target", model, "--json", code=code)
        assert ("embed-mismatch" in ran.codes) == (name == "own")
        assert (tmp_path / f"{name}-out").exists() == (name == "copy")
    command("export-draft", tmp_path / "own", tmp_path / "out", "--target", model, "--no-verify")
    assert "embed_tokens.weight" not in hf_tensors(tmp_path / "out")
