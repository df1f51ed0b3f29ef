"""What extract-draft and merge-draft refuse, with nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ckpt_tools.drafts.export import Options
from ckpt_tools.drafts.merge import merge_draft
from ckpt_tools.drafts.mtp import extract_draft
from ckpt_tools.errors import CkptError
from tests.checkpoints import (
    INDEX,
    changed,
    changed_config,
    config_of,
    hf_tensors,
    holders,
    write_index,
)
from tests.conftest import Command, Tiny

from .mtp_layers import codes


def test_the_count_is_settled_first(tiny: Tiny, tmp_path: Path) -> None:
    """The tensors are there and the config says 0: said, and taken only when asked for."""
    model = tiny("mimo")
    with changed_config(model) as config:
        config["num_nextn_predict_layers"] = 0
    with pytest.raises(CkptError) as failure:
        extract_draft(model, tmp_path / "head", Options())
    assert codes(failure) == ["mtp-undeclared"]
    with pytest.raises(CkptError) as failure:
        extract_draft(model, tmp_path / "head", Options(), layers=2)
    assert codes(failure) == ["mtp-count"]
    extract_draft(model, tmp_path / "head", Options(), layers=1)
    assert config_of(tmp_path / "head")["num_nextn_predict_layers"] == 1


def test_an_incomplete_head_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("mimo")
    with changed(model / "model.safetensors") as tensors:
        del tensors["model.mtp_layers.0.input_proj.weight"]
    with pytest.raises(CkptError) as failure:
        extract_draft(model, tmp_path / "head", Options())
    assert codes(failure) == ["tensors-missing"] and not (tmp_path / "head").exists()


def test_a_model_without_a_head_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    for model in (tiny("llama"), tiny("mimo", mtp=0)):
        with pytest.raises(CkptError) as failure:
            extract_draft(model, tmp_path / "head", Options())
        assert codes(failure) == ["not-a-draft-head"]


def test_a_head_of_another_model_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    extract_draft(tiny("mimo"), tmp_path / "head", Options())
    for model, code in ((tiny("mimo", hidden=64), "hidden-size"), (tiny("glm4_moe"), "family-differs")):
        with pytest.raises(CkptError) as failure:
            merge_draft(model, tmp_path / "head", tmp_path / "out", Options())
        assert code in codes(failure) and not (tmp_path / "out").exists()


def test_two_layers_have_no_class(tiny: Tiny, tmp_path: Path) -> None:
    """MiMoMTP would put both layers into one module, the last one winning."""
    with pytest.raises(CkptError) as failure:
        extract_draft(tiny("mimo", mtp=2), tmp_path / "head", Options())
    assert codes(failure) == ["mtp-layers-several"]


def test_an_index_that_lies_is_not_copied(tiny: Tiny, tmp_path: Path) -> None:
    """The merged index is made from the headers of the merged files."""
    model = tiny("mimo", shards=3)
    extract_draft(model, tmp_path / "head", Options())
    write_index(model, holders(model), total=7)
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    index = json.loads((tmp_path / "merged" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in hf_tensors(model).values())


def bare_target(model: Path, out: Path, keep: tuple[str, ...] = ()) -> Path:
    """What an unfinished download leaves: config and small files, and the shards `keep` of three, no index."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("*.safetensors", INDEX))
    for number, path in enumerate(sorted(model.glob("*.safetensors"))):
        if path.name in keep:
            shutil.copyfile(path, out / f"part-{number}.safetensors")
    return out


@pytest.mark.parametrize("family", ["mimo", "glm4_moe", "qwen3_next"])
@pytest.mark.parametrize("present", [0, 1, 2])
def test_a_target_without_its_body_is_refused(
    family: str, present: int, tiny: Tiny, tmp_path: Path, command: Command
) -> None:
    model = tiny(family, shards=3)
    extract_draft(model, tmp_path / "head", Options())
    shards = tuple(sorted(path.name for path in model.glob("*.safetensors")))
    target = bare_target(model, tmp_path / "target", shards[:present])
    for words in ((), ("--dry-run",)):
        ran = command("merge-draft", target, tmp_path / "head", tmp_path / "out", "--json", *words, code=1)
        assert ran.codes == ["tensors-missing"] and not (tmp_path / "out").exists()
    assert "mtp" not in ran.finding("tensors-missing")["actual"]


def test_a_config_alone_is_no_target(tiny: Tiny, tmp_path: Path, command: Command) -> None:
    model = tiny("mimo")
    extract_draft(model, tmp_path / "head", Options())
    ran = command("merge-draft", model / "config.json", tmp_path / "head", tmp_path / "out", "--json", code=2)
    assert ran.codes == ["target-not-hf"] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["fp8", "awq"])
def test_a_quantised_body_may_be_packed(method: str, tiny: Tiny, tmp_path: Path, command: Command) -> None:
    """Names of AWQ are its own: a module with any tensor counts; one without does not."""
    model = tiny("mimo")
    extract_draft(model, tmp_path / "head", Options())
    with changed_config(model) as config:
        config["quantization_config"] = {"quant_method": method, "modules_to_not_convert": []}
    weight = "model.layers.0.mlp.up_proj.weight"
    with changed(model / "model.safetensors") as tensors:
        packed = tensors.pop(weight)
        tensors[weight.replace(".weight", ".qweight")] = packed
    code = 0 if method == "awq" else 1
    command("merge-draft", model, tmp_path / "head", tmp_path / "out", "--json", code=code)
    with changed(model / "model.safetensors") as tensors:
        del tensors[weight.replace(".weight", ".qweight")]
    ran = command("merge-draft", model, tmp_path / "head", tmp_path / "other", "--json", code=1)
    assert ran.codes == ["tensors-missing"]
