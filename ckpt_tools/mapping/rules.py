"""Rules tie Hugging Face names to one Megatron name; a table of rules expands to a finite bijection.

Names are templates whose dotted segments may be an axis: `decoder.layers.{layer}.mlp.linear_fc2.weight`. An axis that a
name does not spell is a leading dimension of the stored tensor: that is all that "stacked" layers, stacked experts and
packed experts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .arrangement import Arrangement, Shape

Values = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One index of a name: its values on the Megatron side and, where they differ, on the Hugging Face side.

    On the `silent` side ("hf" or "megatron") names neither spell it nor stack it: Qwen's `mtp.fc`, which allows one MTP
    layer; the leading 1 of ERNIE's router bias.
    """

    name: str
    megatron: Values
    hf: Values | None = None
    silent: str = ""

    @property
    def first(self) -> Axis:
        """The axis with its first value only."""
        return Axis(self.name, self.megatron[:1], None if self.hf is None else self.hf[:1], self.silent)

    @property
    def hf_values(self) -> Values:
        return self.megatron if self.hf is None else self.hf


@dataclass(frozen=True, slots=True)
class Spelling:
    """One on-disk name of a Megatron tensor and the named variants it belongs to, such as `("norms", "fused")`."""

    template: str
    variants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Codec:
    """How the one part of a rule is stored: "transposed", or "mxfp4" with its scales beside it.

    `stored` is the stored logical shape where the rule states the decoded one; `companion` a second tensor (name, shape).
    `decoded` is the part's name in the release's plain form.
    """

    kind: str
    stored: Shape
    decoded: str
    companion: tuple[str, Shape] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One Megatron tensor per combination of axis values, arranged from the parts `hf` of shapes `shapes`.

    `spellings[0]` is what Megatron with TransformerEngine writes; the others are read as well and written on request.
    `keep_dtype` marks tensors that no dtype option may cast (router bias, integer tables). `pieces` are (suffix, rows) of
    a whole that Megatron stores as several tensors, cut along its first axis (gated delta net: `in_proj.weight.query`, ...).
    `shift` is added to values on the way to Megatron and subtracted on the way back.
    """

    spellings: tuple[Spelling, ...]
    hf: tuple[str, ...]
    shapes: tuple[Shape, ...]
    arrangement: Arrangement
    axes: tuple[Axis, ...] = ()
    keep_dtype: bool = False
    pieces: tuple[tuple[str, int], ...] = ()
    shift: float = 0.0
    codec: Codec | None = None

    @property
    def hf_stored(self) -> tuple[tuple[str, Shape], ...]:
        """(template, logical shape as stored) of every Hugging Face tensor of the rule."""
        if self.codec is None:
            return tuple(zip(self.hf, self.shapes, strict=True))
        companion = (self.codec.companion,) if self.codec.companion else ()
        return ((self.hf[0], self.codec.stored), *companion)

    @property
    def whole_shape(self) -> Shape:
        return self.arrangement.whole_shape(self.shapes)

    @property
    def stored(self) -> tuple[tuple[str, Shape], ...]:
        """(suffix of the name, shape) of every tensor that the whole is stored as."""
        shape = self.whole_shape
        if not self.pieces:
            return (("", shape),)
        if self.arrangement.axis or sum(rows for _, rows in self.pieces) != shape[0]:
            raise ValueError(f"pieces {self.pieces} do not make up {shape[0]} rows")
        return tuple((f".{suffix}", (rows, *shape[1:])) for suffix, rows in self.pieces)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A Hugging Face tensor that must equal another one: compared on the way in, copied on the way out."""

    hf: str
    of: str


@dataclass(frozen=True, slots=True)
class State:
    """A module for which TransformerEngine asks an `_extra_state` object."""

    spellings: tuple[Spelling, ...]
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Everything one model holds, on both sides.

    `recomputed` are buffers that older releases store and that follow from the config (rotary `inv_freq`).
    """

    rules: tuple[Rule, ...]
    states: tuple[State, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    recomputed: tuple[str, ...] = ()


class Slot(NamedTuple):
    """A logical tensor inside a stored one: the stored name and the position on its leading axes."""

    name: str
    place: tuple[int, ...]


class Bound(NamedTuple):
    """One expanded row of a table."""

    rule: Rule
    megatron: Slot
    hf: tuple[Slot, ...]

    @property
    def wholes(self) -> tuple[Slot, ...]:
        """Slots of the stored Megatron tensors: one, or one per piece."""
        if not self.rule.pieces:
            return (self.megatron,)
        return tuple(Slot(self.megatron.name + suffix, self.megatron.place) for suffix, _ in self.rule.stored)


@dataclass(frozen=True, slots=True)
class Naming:
    """Whether the decoder's layers are stacked into one tensor, and which spelling each rule uses (by its canonical one)."""

    stacked: bool
    spelling: Mapping[str, Spelling] = field(default_factory=dict)

    def template(self, row: Rule | State) -> str:
        canonical = row.spellings[0]
        chosen = self.spelling.get(canonical.template, canonical).template
        return without(chosen, "layer") if self.stacked else chosen

    def aliases(self, row: Rule) -> list[str]:
        """Templates of the same variants as the chosen one: other names that specs ask for, written for the same bytes."""
        canonical = row.spellings[0]
        chosen = self.spelling.get(canonical.template, canonical)
        others = [s.template for s in row.spellings if s.variants == chosen.variants and s != chosen]
        return [without(template, "layer") if self.stacked else template for template in others]


def naming_of(table: Table, stacked: bool, variants: Mapping[str, str]) -> Naming:
    """The naming that follows `variants` where a rule knows them and is canonical elsewhere."""
    chosen: dict[str, Spelling] = {}
    rows: tuple[Rule | State, ...] = (*table.rules, *table.states)
    for row in rows:
        wanted = dict(row.spellings[0].variants)
        wanted |= {kind: value for kind, value in variants.items() if kind in wanted}
        match = [spelling for spelling in row.spellings if dict(spelling.variants) == wanted]
        chosen[row.spellings[0].template] = match[0] if match else row.spellings[0]
    return Naming(stacked, chosen)


def state_keys(table: Table, naming: Naming) -> list[str]:
    """Keys of every `_extra_state` object, each once: `<module>._extra_state/shard_<index>_<count>` (mcore ShardedObject)."""
    keys = []
    for state in table.states:
        template = naming.template(state)
        counts = [len(axis.megatron) for axis in stacked_axes(template, state.axes, hf=False)]
        total = ".".join(map(str, counts)) or "1"
        for slot in _slots(template, state.axes, hf=False):
            index = ".".join(map(str, slot.place)) or "0"
            keys.append(f"{slot.name}._extra_state/shard_{index}_{total}")
    return list(dict.fromkeys(keys))


def without(template: str, axis: str) -> str:
    """The template with an axis taken out: the name of the tensor that stacks it."""
    token = f"{{{axis}}}"
    return ".".join(segment for segment in template.split(".") if segment != token)


def spelled(template: str, axis: Axis, hf: bool) -> bool:
    return axis.silent == side(hf) or f"{{{axis.name}}}" in template.split(".")


def side(hf: bool) -> str:
    return "hf" if hf else "megatron"


def stacked_axes(template: str, axes: tuple[Axis, ...], hf: bool) -> tuple[Axis, ...]:
    """The axes that are leading dimensions of the tensor that `template` names."""
    return tuple(axis for axis in axes if not spelled(template, axis, hf))


def stored_shape(template: str, axes: tuple[Axis, ...], logical: Shape, hf: bool) -> Shape:
    """Shape of the stored tensor: one leading dimension per axis that the name does not spell."""
    return (*(len(axis.megatron) for axis in stacked_axes(template, axes, hf)), *logical)


def _slots(template: str, axes: tuple[Axis, ...], hf: bool) -> list[Slot]:
    """The slot of `template` for every combination of axis values, in row-major order of `axes`.

    A template spells its axes in that order, so names grow axis by axis instead of being formatted one by one.
    """
    rest = template
    partial: list[tuple[str, tuple[int, ...]]] = [("", ())]
    for axis in axes:
        values = axis.hf_values if hf else axis.megatron
        before, token, after = rest.partition(f"{{{axis.name}}}")
        if token:
            partial = [(f"{name}{before}{value}", place) for name, place in partial for value in values]
            rest = after
        elif axis.silent == side(hf):
            partial = [(name, place) for name, place in partial for _ in values]
        else:
            partial = [(name, (*place, i)) for name, place in partial for i in range(len(values))]
    if "{" in rest:
        raise ValueError(f"{template} spells its axes in another order than {[axis.name for axis in axes]}")
    return [Slot(name + rest, place) for name, place in partial]


def expand(table: Table, naming: Naming) -> Iterator[Bound]:
    """Every row of the table under one naming."""
    for rule in table.rules:
        parts = zip(*(_slots(name, rule.axes, hf=True) for name in rule.hf), strict=True)
        for megatron, hf in zip(_slots(naming.template(rule), rule.axes, hf=False), parts, strict=True):
            yield Bound(rule, megatron, hf)


def hf_shapes(table: Table) -> dict[str, Shape]:
    """Every Hugging Face tensor of the table with its shape; raises ValueError if two rules claim one name."""
    found: dict[str, Shape] = {}
    for rule in table.rules:
        for template, logical in rule.hf_stored:
            shape = stored_shape(template, rule.axes, logical, hf=True)
            names = {slot.name for slot in _slots(template, rule.axes, hf=True)}
            if clash := names & found.keys():
                raise ValueError(f"two rules claim {sorted(clash)[:3]}")
            found |= dict.fromkeys(names, shape)
    return found


def decoded_rows(rows: Iterable[Bound]) -> list[Bound]:
    """Rows whose encoded parts are replaced by decoded ones under their plain names."""
    found: list[Bound] = []
    slots: dict[int, Iterator[Slot]] = {}
    for row in rows:
        codec = row.rule.codec
        if codec is None:
            found.append(row)
            continue
        each = slots.setdefault(id(row.rule), iter(_slots(codec.decoded, row.rule.axes, hf=True)))
        plain = replace(row.rule, codec=None, hf=(codec.decoded,))
        found.append(row._replace(rule=plain, hf=(next(each),)))
    return found


def megatron_names(template: str, axes: tuple[Axis, ...]) -> list[str]:
    """The Megatron names of one template, each once."""
    if not all(axis.megatron for axis in axes):
        return []
    own = tuple(axis for axis in axes if f"{{{axis.name}}}" in template)  # the others are positions inside a tensor
    return [slot.name for slot in _slots(template, own, hf=False)]


def megatron_shapes(rule: Rule, template: str) -> dict[str, Shape]:
    """Every stored Megatron tensor of a rule under one of its templates, with its shape."""
    return {
        name + suffix: stored_shape(template, rule.axes, logical, hf=False)
        for name in megatron_names(template, rule.axes)
        for suffix, logical in rule.stored
    }


def on_axis(template: str, axes: tuple[Axis, ...], name: str, hf: bool) -> dict[int, str]:
    """For every position on axis `name`: one name of `template` there (the other axes at their first value)."""
    firsts = tuple(
        axis
        if axis.name == name
        else Axis(axis.name, axis.megatron[:1], axis.hf[:1] if axis.hf is not None else None, axis.silent)
        for axis in axes
    )
    if not any(axis.name == name for axis in axes) or any(len(axis.megatron) == 0 for axis in firsts):
        return {}
    return dict(enumerate(slot.name for slot in _slots(template, firsts, hf)))
