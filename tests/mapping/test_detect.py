"""The naming of a checkpoint is read from its keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.mapping.arrangement import copy
from ckpt_tools.mapping.detect import detect, mtp_layers_present
from ckpt_tools.mapping.rules import Axis, Rule, Spelling, Table, expand, naming_of

LAYER, MTP = Axis("layer", range(3)), Axis("mtp", range(4))


def norm(prefix: str, name: str, axis: Axis, variants: tuple[tuple[str, str], ...] = ()) -> Rule:
    fused = Spelling(f"{prefix}.fc.{name}", (*variants, ("norms", "fused")))
    separate = Spelling(f"{prefix}.{name}", (*variants, ("norms", "separate")))
    return Rule((fused, separate), (f"hf.{prefix}.{name}",), ((4,),), copy(4), (axis,))


def weight(prefix: str, axis: Axis) -> Rule:
    return Rule((Spelling(f"{prefix}.w"),), (f"hf.{prefix}.w",), ((4,),), copy(4), (axis,))


D, M = "d.layers.{layer}", "mtp.layers.{mtp}"
TABLE = Table((norm(D, "a", LAYER), norm(D, "b", LAYER), weight(D, LAYER), weight(M, MTP)))


@given(stacked=st.booleans(), norms=st.sampled_from(["fused", "separate"]))
def test_what_a_naming_writes_is_detected(stacked: bool, norms: str) -> None:
    naming = naming_of(TABLE, stacked, {"norms": norms})
    keys = {row.megatron.name for row in expand(TABLE, naming)}
    found = detect(TABLE, keys)
    assert found.naming.stacked is stacked
    assert [found.naming.template(rule) for rule in TABLE.rules] == [naming.template(rule) for rule in TABLE.rules]
    assert found.variants["norms"].keys() == {norms}
    assert found.variants["layers"].keys() == {"stacked" if stacked else "per-layer"}
    assert found.mixed == {}


def test_rules_differ_in_spelling_independently() -> None:
    found = detect(TABLE, {"d.layers.fc.a", "d.layers.b", "d.layers.w"})
    assert [found.naming.template(rule) for rule in TABLE.rules[:2]] == ["d.layers.fc.a", "d.layers.b"]
    assert found.mixed == {"norms": {"fused": "d.layers.fc.a", "separate": "d.layers.b"}}


def test_both_spellings_of_one_tensor_are_mixed_and_the_fuller_one_is_taken() -> None:
    keys = {"d.layers.0.a", "d.layers.1.a", "d.layers.1.fc.a", "d.layers.2.a"}
    found = detect(TABLE, keys)
    assert found.naming.template(TABLE.rules[0]) == "d.layers.{layer}.a"
    assert found.mixed["norms"] == {"fused": "d.layers.1.fc.a", "separate": "d.layers.0.a"}


def test_stacked_and_per_layer_keys_side_by_side_are_mixed() -> None:
    found = detect(TABLE, {"d.layers.fc.a", "d.layers.1.w"})
    assert found.mixed == {"layers": {"stacked": "d.layers.fc.a", "per-layer": "d.layers.1.w"}}


@pytest.mark.parametrize("keys", [set[str](), {"nothing.known"}])
def test_nothing_known_keeps_the_canonical_spelling(keys: set[str]) -> None:
    found = detect(TABLE, keys)
    assert found.naming.template(TABLE.rules[0]) == "d.layers.{layer}.fc.a"
    assert found.variants == {"layers": {}}
    assert found.mixed == {}


def test_mtp_layers_are_those_with_a_key() -> None:
    keys = {"mtp.layers.0.w", "mtp.layers.2.w", "d.layers.1.w", "mtp.layers.9.w"}
    assert mtp_layers_present(TABLE, keys, hf=False) == {0, 2}
    assert mtp_layers_present(TABLE, {"d.layers.w", "hf.layers.60.w"}, hf=False) == set()


def test_mtp_layers_are_counted_by_position_on_the_hugging_face_side() -> None:
    axis = Axis("mtp", range(2), range(61, 63))
    table = Table((Rule((Spelling("mtp.{mtp}.w"),), ("layers.{mtp}.w",), ((4,),), copy(4), (axis,)),))
    assert mtp_layers_present(table, {"layers.0.w", "layers.62.w", "mtp.0.w"}, hf=True) == {1}
    assert mtp_layers_present(table, {"layers.61.w", "mtp.1.w"}, hf=False) == {1}
