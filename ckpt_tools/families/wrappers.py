"""Releases that wrap a supported language model with other towers: its tensors under other names, its config in text_config.

The table is the language model's; only the leading part of its names differs. The other towers travel on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..mapping.rules import Codec, Duplicate, Rule, Table
from .base import HF, Family, Variant, Variants
from .config import Fields
from .dims import Dims

MODEL, HEAD = "model.", "lm_head."
PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Text:
    """What a wrapper's `text_config` may be: its model_types, and the values that fields have which its class has fixed."""

    model_types: tuple[str, ...]
    fixed: tuple[tuple[str, object], ...] = ()

    def read(self, fields: Fields, dims: Callable[[Fields], Dims]) -> Dims:
        """`dims` of the config; another kind of language model is a problem, named."""
        nested = fields.config.get("text_config")
        kind = nested.get("model_type") if isinstance(nested, Mapping) else None
        if kind not in (None, *self.model_types):
            fields.wrong("text_config.model_type", " or ".join(map(repr, self.model_types)), kind)
        fixed = {name: value for name, value in self.fixed if not fields.has(name)}
        return dims(replace(fields, config={**fields.config, **fixed}))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a release keeps what a text-only one calls `model.` and `lm_head.`; all other names stay."""

    model: str
    head: str = HEAD

    def name(self, plain: str) -> str:
        """The name here of a text-only release's tensor."""
        for old, new in ((MODEL, self.model), (HEAD, self.head)):
            if plain.startswith(old):
                return new + plain.removeprefix(old)
        return plain


TEXT = Layout(MODEL)
INNER = Layout("model.language_model.")  # transformers' multimodal classes
OUTER = Layout("language_model.model.", "language_model.lm_head.")  # Kimi


def wrapped(
    family: Family,
    model_types: tuple[str, ...],
    layouts: tuple[Layout, ...],
    towers: tuple[tuple[str, ...], ...],
    text: Text | None = None,
    *,
    name: str = "",
    title: str = "",
) -> Family:
    """`family` as the language model of releases of `model_types`, in one of `layouts`, told apart by their names.

    `towers` are leading name segments of what is not the language model, `text` what the language model must be. Without
    a name of its own it takes the place of `family`; with one, it is held against what `family` is, and no server's class
    of its MTP head is claimed.
    """
    by_prefix = {layout.model: layout for layout in layouts}

    def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
        return renamed(family.table(d, mtp, padded_vocab, chosen), by_prefix[chosen[PREFIX]].name)

    def marks(d: Dims) -> dict[str, tuple[str, ...]]:
        return {layout.model: (layout.name("model.embed_tokens.weight"),) for layout in layouts}

    prefix = Variant(PREFIX, HF, tuple(by_prefix), marks)
    return replace(
        family,
        name=name or family.name,
        title=title or family.title,
        model_types=model_types,
        dims=family.dims if text is None else lambda fields: text.read(fields, family.dims),
        table=table,
        variants=(prefix, *(_spread(variant, layouts) for variant in family.variants)),
        other_towers=towers,
        draft_class="" if name else family.draft_class,
        causal=family.causal and not name,
        proof=f"as {family.name}; names of transformers' class" if name else family.proof,
    )


def _spread(variant: Variant, layouts: tuple[Layout, ...]) -> Variant:
    """A variant of the language model, told by names in any layout."""
    if variant.side != HF:
        return variant

    def marks(d: Dims) -> Mapping[str, tuple[str, ...]]:
        return {
            option: tuple(layout.name(plain) for layout in layouts for plain in names)
            for option, names in variant.marks(d).items()
        }

    return replace(variant, marks=marks)


def renamed(table: Table, name: Callable[[str], str]) -> Table:
    """The table with every Hugging Face name put through `name`."""
    return replace(
        table,
        rules=tuple(_renamed_rule(rule, name) for rule in table.rules),
        duplicates=tuple(Duplicate(name(each.hf), name(each.of)) for each in table.duplicates),
        recomputed=tuple(map(name, table.recomputed)),
    )


def _renamed_rule(rule: Rule, name: Callable[[str], str]) -> Rule:
    return replace(rule, hf=tuple(map(name, rule.hf)), codec=rule.codec and _renamed_codec(rule.codec, name))


def _renamed_codec(codec: Codec, name: Callable[[str], str]) -> Codec:
    beside = codec.companion and (name(codec.companion[0]), codec.companion[1])
    return replace(codec, decoded=name(codec.decoded), companion=beside)
