"""Tables expand to a bijection; names, stacked axes and state keys are what Megatron spells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from ckpt_tools.errors import CkptError
from ckpt_tools.families import FAMILIES, family_of, multimodal
from ckpt_tools.families.config import Fields
from ckpt_tools.mapping.arrangement import copy, gate_over_up
from ckpt_tools.mapping.rules import (
    Axis,
    Naming,
    Rule,
    Slot,
    Spelling,
    State,
    Table,
    expand,
    hf_shapes,
    megatron_names,
    megatron_shapes,
    naming_of,
    state_keys,
    stored_shape,
    without,
)
from tests.golden import load, names

LAYER, EXPERT = Axis("layer", range(3)), Axis("expert", range(2))


def experts(megatron: str, hf: str, axes: tuple[Axis, ...] = (LAYER, EXPERT)) -> Rule:
    return Rule((Spelling(megatron),), (hf,), ((4, 5),), copy(4), axes)


def slots(rule: Rule, stacked: bool) -> list[tuple[Slot, Slot]]:
    return [(row.megatron, row.hf[0]) for row in expand(Table((rule,)), Naming(stacked))]


EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")


def releases() -> dict[str, str]:
    """One release per family, of those whose whole config is known."""
    found: dict[str, str] = {}
    for name in names():
        try:
            fields = Fields(load(name).config, name)
            family = family_of(fields)
            family.dims(fields)
            fields.done()
        except CkptError:
            continue
        found.setdefault(family.name, name)
    return found


def tables(release: str) -> Iterator[tuple[Table, list[bool]]]:
    """The tables of a release with few experts, up to 2 MTP layers, every variant; whether its layers can be stacked."""
    config = load(release).config
    for level in (config, config.get("text_config", {})):
        level |= {name: 4 for name in EXPERT_COUNTS if name in level}
    fields = Fields(config, release)
    family = family_of(fields)
    dims = family.dims(fields)
    for options in product(*(variant.options for variant in family.variants)):
        chosen = dict(zip((variant.kind for variant in family.variants), options, strict=True))
        mtp = min(2, family.mtp_limit) if family.mtp_field or family.undeclared_mtp else 0
        table = family.table(dims, mtp, dims.vocab_size + 128, chosen)
        layers = [axis for rule in table.rules for axis in rule.axes if axis.name == "layer"]
        uniform = all(axis.megatron == range(dims.num_hidden_layers) for axis in layers)
        yield table, [False, True] if uniform else [False]


def companions(table: Table) -> tuple[str, ...]:
    """Last segments of the second tensors that codecs keep beside a part."""
    codecs = (rule.codec for rule in table.rules)
    return tuple(c.companion[0].rpartition(".")[2] for c in codecs if c is not None and c.companion)


@pytest.mark.parametrize("release", releases().values())
def test_no_two_rows_share_a_slot(release: str) -> None:
    for table, stacking in tables(release):
        for stacked, norms in product(stacking, ("fused", "separate")):
            naming = naming_of(table, stacked, {"norms": norms})
            rows = list(expand(table, naming))
            assert max(Counter(slot for row in rows for slot in row.wholes).values()) == 1
            assert max(Counter(slot for row in rows for slot in row.hf).values()) == 1
            beside = {name for name in hf_shapes(table) if name.endswith(companions(table))}
            assert {slot.name for row in rows for slot in row.hf} == hf_shapes(table).keys() - beside
            spelled = {slot.name for row in rows for slot in (*row.wholes, *row.hf)}
            assert not [name for name in spelled if "{" in name or "}" in name or ".." in name]
            keys = state_keys(table, naming)
            assert len(set(keys)) == len(keys)


def test_nearly_every_family_has_a_release() -> None:
    own = [family for family in FAMILIES if family not in multimodal.FAMILIES]  # those wrap others
    assert len(releases()) >= len(own) - 2  # the listed configs of two are partial


def test_a_spelled_axis_is_in_the_name_and_another_is_a_leading_dimension() -> None:
    rule = experts("decoder.layers.{layer}.fc.weight", "model.layers.{layer}.experts.{expert}.w")
    assert slots(rule, stacked=False) == [
        (Slot(f"decoder.layers.{i}.fc.weight", (e,)), Slot(f"model.layers.{i}.experts.{e}.w", ()))
        for i, e in product(range(3), range(2))
    ]
    assert slots(rule, stacked=True) == [
        (Slot("decoder.layers.fc.weight", (i, e)), Slot(f"model.layers.{i}.experts.{e}.w", ()))
        for i, e in product(range(3), range(2))
    ]
    template = rule.spellings[0].template
    assert stored_shape(template, rule.axes, (4, 5), hf=False) == (2, 4, 5)
    assert stored_shape(without(template, "layer"), rule.axes, (4, 5), hf=False) == (3, 2, 4, 5)


def test_experts_packed_on_the_hugging_face_side() -> None:
    rule = experts("layers.{layer}.experts.{expert}.fc", "layers.{layer}.experts.w")
    assert slots(rule, stacked=False)[3] == (Slot("layers.1.experts.1.fc", ()), Slot("layers.1.experts.w", (1,)))
    assert hf_shapes(Table((rule,))) == {f"layers.{i}.experts.w": (2, 4, 5) for i in range(3)}


def test_an_axis_may_have_other_values_on_the_hugging_face_side() -> None:
    axis = Axis("mtp", range(2), range(61, 63))
    rule = experts("mtp.layers.{mtp}.enorm.weight", "model.layers.{mtp}.enorm.weight", (axis,))
    assert slots(rule, stacked=True) == [
        (Slot("mtp.layers.0.enorm.weight", ()), Slot("model.layers.61.enorm.weight", ())),
        (Slot("mtp.layers.1.enorm.weight", ()), Slot("model.layers.62.enorm.weight", ())),
    ]
    assert hf_shapes(Table((rule,))).keys() == {"model.layers.61.enorm.weight", "model.layers.62.enorm.weight"}


def test_values_that_differ_never_become_places() -> None:
    """A stacked Hugging Face tensor is indexed by position, not by the values of the axis."""
    rule = experts("layers.{layer}.fc", "packed.w", (Axis("layer", range(2), range(5, 7)),))
    assert [hf.place for _, hf in slots(rule, stacked=False)] == [(0,), (1,)]


def test_a_silent_axis_is_neither_spelled_nor_stacked_on_its_side() -> None:
    rule = experts("mtp.layers.{mtp}.eh_proj", "mtp.fc.weight", (Axis("mtp", range(1), silent="hf"),))
    assert slots(rule, stacked=True) == [(Slot("mtp.layers.0.eh_proj", ()), Slot("mtp.fc.weight", ()))]
    assert hf_shapes(Table((rule,))) == {"mtp.fc.weight": (4, 5)}
    rule = experts("norm.weight", "norms.{one}.weight", (Axis("one", range(1), silent="megatron"),))
    assert slots(rule, stacked=True) == [(Slot("norm.weight", ()), Slot("norms.0.weight", ()))]
    assert megatron_shapes(rule, "norm.weight") == {"norm.weight": (4, 5)}


def test_only_whole_segments_are_axes() -> None:
    assert without("a.{layer}.b", "layer") == "a.b"
    assert without("a.x{layer}.b", "layer") == "a.x{layer}.b"
    assert megatron_names("a.{layer}.b", (LAYER, EXPERT)) == ["a.0.b", "a.1.b", "a.2.b"]


def test_two_rules_never_claim_one_name() -> None:
    twice = Table((experts("a.{layer}.{expert}", "same.{layer}.{expert}"), experts("b.{layer}.{expert}", "same.0.1")))
    with pytest.raises(ValueError, match=r"two rules claim \['same\.0\.1'\]"):
        hf_shapes(twice)


def test_every_part_of_a_rule_is_named_in_order() -> None:
    rule = Rule((Spelling("fc1.{layer}"),), ("gate.{layer}", "up.{layer}"), ((2, 3), (2, 3)), gate_over_up(2), (LAYER,))
    assert rule.whole_shape == (4, 3)
    (first, *_) = expand(Table((rule,)), Naming(False))
    assert first.hf == (Slot("gate.0", ()), Slot("up.0", ()))


def test_a_whole_may_be_stored_in_pieces() -> None:
    pieces = (("query", 1), ("key", 3))
    rule = Rule((Spelling("d.{layer}.in"),), ("in.{layer}",), ((4, 5),), copy(4), (LAYER,), pieces=pieces)
    rows = list(expand(Table((rule,)), Naming(stacked=True)))
    assert rows[2].wholes == (Slot("d.in.query", (2,)), Slot("d.in.key", (2,)))
    assert megatron_shapes(rule, "d.in") == {"d.in.query": (3, 1, 5), "d.in.key": (3, 3, 5)}
    assert megatron_shapes(rule, "d.{layer}.in")["d.1.in.key"] == (3, 5)
    with pytest.raises(ValueError, match="do not make up 4 rows"):
        _ = replace(rule, pieces=pieces[:1]).stored


NORMS = (
    Spelling("layers.{layer}.qkv.norm", (("norms", "fused"),)),
    Spelling("layers.{layer}.norm", (("norms", "separate"),)),
)


def test_naming_follows_the_variants_a_rule_knows() -> None:
    table = Table((Rule(NORMS, ("n.{layer}",), ((4,),), copy(4), (LAYER,)), experts("e.{layer}", "w.{layer}.{expert}")))
    separate = naming_of(table, True, {"norms": "separate", "mtp": "unheard of"})
    assert [separate.template(rule) for rule in table.rules] == ["layers.norm", "e"]
    fused = naming_of(table, False, {})
    assert [fused.template(rule) for rule in table.rules] == ["layers.{layer}.qkv.norm", "e.{layer}"]
    assert naming_of(table, True, {"norms": "unheard of"}).template(table.rules[0]) == "layers.qkv.norm"


@pytest.mark.parametrize(
    ("stacked", "template", "axes", "expected"),
    [
        (False, "decoder.final", (), ["decoder.final._extra_state/shard_0_1"]),
        (True, "d.{layer}.fc", (LAYER,), [f"d.fc._extra_state/shard_{i}_3" for i in range(3)]),
        (False, "d.{layer}.fc", (LAYER,), [f"d.{i}.fc._extra_state/shard_0_1" for i in range(3)]),
        (
            True,
            "d.{layer}.e",
            (LAYER, EXPERT),
            [f"d.e._extra_state/shard_{i}.{e}_3.2" for i, e in product(range(3), range(2))],
        ),
    ],
)
def test_state_keys(stacked: bool, template: str, axes: tuple[Axis, ...], expected: list[str]) -> None:
    table = Table((), states=(State((Spelling(template),), axes),))
    assert state_keys(table, Naming(stacked)) == expected
