"""SpecForge's own classes: its training states and both of its exports we read, what we write for SGLang it loads whole, and
its modules and ours give the same logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.spec import DraftSpec, open_draft
from tests.conftest import Tiny

from .formats import heads
from .producers import EXACT, answers, assert_same_answers, oracle, producer

pytestmark = oracle
KINDS = ("plain", "aux", "fc-norm", "raw", "rope")
SERVED = tuple(name for name in KINDS if name != "raw")  # SGLang has no lm_head without a norm before it
STATE, SGLANG, HF = "state", "sglang", "hf"
FORM = "specforge"


@dataclass(frozen=True)
class World:
    """Heads that SpecForge made in `made`, ours for it in `ours`, what it said of these, and the target of all."""

    made: Path
    ours: Path
    target: Path
    found: dict[str, dict[str, Any]]

    def read(self, name: str, form: str) -> DraftSpec:
        if form == STATE:
            return open_draft(self.made / name / "run-step1", self.made / f"{name}.json")
        return open_draft(self.made / f"{name}-{form}", form=FORM)


@pytest.fixture(scope="module")
def world(shared_tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """In two processes: its imports take several seconds."""
    root = tmp_path_factory.mktemp("specforge")
    made, ours, target = root / "made", root / "ours", shared_tiny("llama", layers=8, vocab=heads.V)
    made.mkdir()
    producer("specforge", "make", made, target)
    for name in SERVED:
        source = Options(hf_config=made / f"{name}.json")
        export_draft(made / name / "run-step1", ours / name, target, source)
    export_draft(heads.write(root / "theirs", *from_speculators()), ours / "speculators", target, Options())
    yield World(made, ours, target, producer("specforge", "load", target, *sorted(ours.iterdir())))


def from_speculators() -> tuple[dict[str, Any], heads.Tensors]:
    return heads.speculators_config([2, 4, 5]), heads.eagle3_tensors("layers.0.")


@pytest.mark.parametrize("form", [STATE, SGLANG, HF])
@pytest.mark.parametrize("name", KINDS)
def test_what_it_writes_is_read(world: World, name: str, form: str) -> None:
    spec = world.read(name, form)
    assert spec.errors == () and spec.form == FORM
    assert spec.norms.before_head == (name != "raw") and not spec.norms.output
    assert spec.aux == ((2, 4, 6) if name == "aux" else None)
    if form != STATE:
        assert {entry.source for entry in spec.tensors.values()} == heads.tensors_of(
            world.made / f"{name}-{form}"
        ).keys()


@pytest.mark.parametrize("form", [STATE, SGLANG, HF])
@pytest.mark.parametrize("name", KINDS)
def test_what_it_writes_computes_the_same_here(world: World, name: str, form: str) -> None:
    assert_same_answers(world.read(name, form), world.target, answers(world.made / name))


@pytest.mark.parametrize("name", [*SERVED, "speculators"])
def test_what_we_write_it_loads_whole(world: World, name: str) -> None:
    assert world.found[str(world.ours / name)] == {"class": "LlamaForCausalLMEagle3", **EXACT}


@pytest.mark.parametrize("name", SERVED)
def test_exports_of_a_state_are_its_own(world: World, name: str) -> None:
    """Tensor by tensor what its exporter for SGLang writes of the same state."""
    ours, theirs = heads.tensors_of(world.ours / name), heads.tensors_of(world.made / f"{name}-sglang")
    assert ours.keys() == theirs.keys()
    assert all(ours[key].dtype == theirs[key].dtype and ours[key].equal(theirs[key]) for key in ours)


@pytest.mark.parametrize("name", SERVED)
def test_what_we_write_computes_there_what_its_source_does(world: World, name: str) -> None:
    assert_same_answers(world.read(name, STATE), world.target, answers(world.ours / name))


def test_a_head_of_speculators_computes_there_what_it_does(world: World) -> None:
    """Through our export for SGLang, whose form SpecForge shares."""
    spec = open_draft(world.ours.parent / "theirs")
    assert_same_answers(spec, world.target, answers(world.ours / "speculators"))
