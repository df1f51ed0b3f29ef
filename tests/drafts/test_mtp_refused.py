"""What extract-draft and merge-draft refuse, with nothing left behind."""

from __future__ import annotations

import json
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
from tests.conftest import Tiny

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
