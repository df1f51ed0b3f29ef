"""The family tables enumerate exactly what the public releases hold."""

from __future__ import annotations

from math import prod

import pytest

from ckpt_tools.families import family_of
from ckpt_tools.families.base import Family
from ckpt_tools.families.config import Fields
from ckpt_tools.families.dims import Dims
from ckpt_tools.mapping.rules import Table, hf_shapes
from tests.golden import Golden, load, with_family

DENSE = ("llama", "qwen2", "qwen3", "mimo")
RELEASES = [golden.name for family in DENSE for golden in with_family(family)]


def table_of(golden: Golden) -> tuple[Family, Dims, Table]:
    fields = Fields(golden.config, golden.name)
    family = family_of(fields)
    dims, mtp = family.dims(fields), fields.mtp_layers()
    fields.done()
    return family, dims, family.table(dims, mtp, dims.vocab_size, family.defaults())


def test_every_dense_family_has_a_release() -> None:
    assert {load(name).family for name in RELEASES} == set(DENSE)
    assert len(RELEASES) == 8


@pytest.mark.parametrize("name", RELEASES)
def test_names_and_shapes(name: str) -> None:
    golden = load(name)
    assert golden.complete
    family, _, table = table_of(golden)
    shapes, released = hf_shapes(table), golden.tensors()
    assert family.name == golden.family
    stored_twice = {copy.hf: copy.of for copy in table.duplicates if copy.hf in released}
    assert shapes.keys() | stored_twice.keys() == released.keys()
    every = shapes | {copy: shapes[of] for copy, of in stored_twice.items()}
    assert {key: shape for key, (shape, _) in released.items() if shape is not None and every[key] != shape} == {}
    assert sum(prod(shape) for shape in every.values()) == golden.parameters["total"]


def test_the_mtp_layer_that_lings_published_code_builds() -> None:
    """The base releases have it."""
    golden = load("Ling-flash-2.0")
    family, dims, table = table_of(golden)
    with_head, without = hf_shapes(family.table(dims, 1, dims.vocab_size, family.defaults())), hf_shapes(table)
    head = {name: shape for name, (shape, _) in golden.related_tensors("Ling-flash-base-2.0").items()}
    assert with_head == without | head
    assert not without.keys() & head.keys()


def test_the_head_that_a_tied_release_stores() -> None:
    """Qwen3-0.6B is tied and has an lm_head.weight all the same; tied Qwen2.5 and Llama releases have none."""
    _, dims, table = table_of(load("Qwen3-0.6B"))
    assert dims.tied
    assert [(copy.hf, copy.of) for copy in table.duplicates] == [("lm_head.weight", "model.embed_tokens.weight")]
    assert "lm_head.weight" not in hf_shapes(table)
    assert "lm_head.weight" in load("Qwen3-0.6B").tensors()
    tied = [name for name in RELEASES if load(name).config["tie_word_embeddings"]]
    assert [name for name in tied if "lm_head.weight" in load(name).tensors()] == ["Qwen3-0.6B"]


def test_mimo_declares_its_layer() -> None:
    golden = load("MiMo-7B")
    _, _, table = table_of(golden)
    mtp = {name for name in hf_shapes(table) if ".mtp_layers." in name}
    assert mtp == {name for name in golden.tensors() if ".mtp_layers." in name}
    assert len(mtp) == 16
