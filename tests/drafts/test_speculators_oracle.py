"""speculators' own classes: what its trainer and converter write we read, what we write its `from_pretrained` loads whole, and
its modules and ours give the same logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.spec import open_draft
from tests.conftest import Tiny

from .formats import heads
from .producers import EXACT, answers, assert_same_answers, oracle, producer

pytestmark = oracle
EAGLE3 = ("llama", "qwen3", "residual", "before-fc", "fc-norm", "bias", "full-vocabulary", "rope")
MTP = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
# Sources of exports: config fields and tensors, and who made them.
SOURCES: dict[str, tuple[dict[str, Any], heads.Tensors, str | None]] = {
    "safeailab": (heads.llama_config(draft_vocab_size=heads.DV), heads.eagle3_tensors(), None),
    "sglang": (
        heads.eagle3_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}),
        heads.eagle3_tensors(),
        None,
    ),
    "norm-output": (heads.eagle3_config(norm_output=True), heads.eagle3_tensors(), "sglang"),
    "four-features": (
        heads.eagle3_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, fc_norm=True),
        heads.eagle3_tensors(features=4) | heads.random({f"fc_norm.{i}.weight": (heads.H,) for i in range(4)}),
        None,
    ),
    "bias": (heads.eagle3_config(attention_bias=True), heads.eagle3_tensors(bias=True), None),
    "qk-norm": (heads.eagle3_config(), heads.eagle3_tensors(qk_norm=True), None),
    "rope": (
        heads.eagle3_config(rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 4.0}),
        heads.eagle3_tensors(),
        None,
    ),
}


@dataclass(frozen=True)
class World:
    """Heads that speculators made in `made`, ours for it in `ours`, what it said of these, and the targets of all."""

    made: Path
    ours: Path
    targets: Path
    found: dict[str, dict[str, Any]]

    def target(self, name: str) -> Path:
        return self.targets / (name if name in MTP else "llama")


@pytest.fixture(scope="module")
def world(shared_tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """In two processes: its imports take several seconds."""
    root = tmp_path_factory.mktemp("speculators")
    made, ours, targets = (root / name for name in ("made", "ours", "targets"))
    for folder in (made, ours, targets):
        folder.mkdir()
    for name in ("llama", *MTP):
        (targets / name).symlink_to(shared_tiny(name, layers=4 if name in MTP else 8, vocab=heads.V))
    for name, (config, tensors, form) in SOURCES.items():
        source = heads.write(root / "sources" / name, config, tensors)
        options = Options(format="speculators", form=form, target_name=str(targets / "llama"))
        export_draft(source, ours / name, targets / "llama", options)
    for name in MTP:
        options = Options(format="speculators", target_name=str(targets / name))
        export_draft(targets / name, ours / name, targets / name, options)
    producer("speculators", "make", made, targets)
    yield World(made, ours, targets, producer("speculators", "load", *sorted(ours.iterdir())))


@pytest.mark.parametrize("name", [*EAGLE3, *MTP])
def test_what_it_writes_is_read(world: World, name: str) -> None:
    """Every tensor of the head under a name that we know, and what only the config says."""
    folder = world.made / name
    spec = open_draft(folder)
    assert spec.errors == () and spec.form == "speculators" and spec.verifier == str(world.target(name))
    stored = heads.tensors_of(folder).keys() - {"verifier_lm_head.weight"}
    assert {entry.source for entry in spec.tensors.values()} == stored
    assert spec.aux == (None if name in MTP else (2, 4, 5))


@pytest.mark.parametrize("name", [*EAGLE3, *MTP])
def test_what_it_writes_computes_the_same_here(world: World, name: str) -> None:
    assert_same_answers(open_draft(world.made / name), world.target(name), answers(world.made / name))


@pytest.mark.parametrize("name", [*SOURCES, *MTP])
def test_what_we_write_it_loads_whole(world: World, name: str) -> None:
    kind = "MTPDraftModel" if name in MTP else "Eagle3DraftModel"
    assert world.found[str(world.ours / name)] == {"class": kind, **EXACT}


@pytest.mark.parametrize("name", [*SOURCES, *MTP])
def test_what_we_write_computes_there_what_its_source_does(world: World, name: str) -> None:
    source = world.target(name) if name in MTP else world.ours.parent / "sources" / name
    spec = open_draft(source, form=None if name in MTP else SOURCES[name][2])
    assert_same_answers(spec, world.target(name), answers(world.ours / name))


@pytest.mark.parametrize("name", MTP)
def test_mtp_exports_are_those_of_its_own_converter(world: World, name: str) -> None:
    ours, theirs = heads.tensors_of(world.ours / name), heads.tensors_of(world.made / name)
    del theirs["verifier_lm_head.weight"]  # NaN: what it computes losses with, saved by its converter
    assert ours.keys() == theirs.keys()
    assert all(ours[key].dtype == theirs[key].dtype and ours[key].equal(theirs[key]) for key in ours)


def test_further_layers_of_its_heads_are_refused(world: World) -> None:
    """They have no second norm, which SGLang's further layers read in place of the first."""
    (finding,) = open_draft(world.made / "deep").errors
    assert (finding.code, finding.actual) == ("tensors-missing", "absent: layers.1.hidden_norm.weight")


def test_an_embedding_that_it_would_not_set_is_said(world: World) -> None:
    """Its own heads bring theirs."""
    options, target = Options(format="speculators", target_name="a/b", dry_run=True), world.targets / "llama"
    for head, left_out in ((world.ours / "sglang", True), (world.made / "llama", False)):
        codes = [finding.code for finding in export_draft(head, world.ours / "none", target, options).findings]
        assert ("embedding-left-out" in codes) == left_out
