"""What a family is: how its config is read and what its table says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from ..mapping.arrangement import Shape
from ..mapping.rules import Table
from .config import Fields
from .dims import Dims

HF, MEGATRON = "hf", "megatron"


def unknown_shape(_: str) -> Shape | None:
    """No stored shape is known."""
    return None


@dataclass(frozen=True, slots=True)
class Variant:
    """A layout that releases or tools write in more than one way, told apart by names.

    `marks(dims)` maps every option to names of which any one shows it; `options[0]` is what is written by default. Where
    options share names, `shapes(dims)` gives the shape that a mark has in each.
    """

    kind: str
    side: str
    options: tuple[str, ...]
    marks: Callable[[Dims], Mapping[str, tuple[str, ...]]]
    shapes: Callable[[Dims], Mapping[str, Shape]] | None = None

    def detect(
        self, dims: Dims, names: Set[str], shape_of: Callable[[str], Shape | None] = unknown_shape
    ) -> str | None:
        """The option whose names (and shapes, where those tell) are present, or None."""
        marks, wanted = self.marks(dims), self.shapes(dims) if self.shapes else {}
        for option in self.options:
            for name in marks.get(option, ()):
                if name in names and (option not in wanted or shape_of(name) == wanted[option]):
                    return option
        return None


Variants = Mapping[str, str]
NONE: Variants = {}


# What a family's mapping is held against, beyond the names and shapes of its releases and an exact round trip.
LOGITS = "Megatron's logits equal transformers'"
MTP_LOGITS = "Megatron's logits and MTP logits equal transformers'"
GATED_LOGITS = "Megatron's logits and MTP logits, head gates added to its attention, equal transformers'"
HYBRID_LOGITS = "Megatron's logits, its CUDA kernels restated, equal transformers'; MTP: an independent statement"
STATED = "an independent statement of every tensor"


def _whole(_: Dims, __: str) -> int:
    """Tensors are quantised as they are stored."""
    return 1


@dataclass(frozen=True, slots=True)
class Family:
    """`dims` reads a config and gathers its problems; `table(dims, mtp, padded_vocab, chosen)` enumerates every tensor.

    `mtp_field` is the config field that counts MTP layers ("" if the family has none); `draft_class` is the class that
    SGLang loads the MTP head with. `undeclared_mtp` families have MTP layers that no config field counts: the keys decide.
    `mtp_limit` is the most layers that the family's names can tell apart. `other_towers` are leading name segments of what
    is not the language model (vision, audio). `slime_spec` is slime's layer plugin, where it needs one.
    `scale_parts(dims, name)`: parts of a quantised tensor whose scale grids may start anew.
    `exports` are (variant, option) that the way back always takes; `own_quantisation` is a quant_method that the table reads.
    `causal`: transformers has these model_types as causal language models, or their body under another name, which is what
    smoke loads. `proof` says what the mapping is held against (tests/oracles).
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    dims: Callable[[Fields], Dims]
    table: Callable[[Dims, int, int, Variants], Table]
    mtp_field: str = ""
    draft_class: str = ""
    variants: tuple[Variant, ...] = ()
    undeclared_mtp: bool = False
    mtp_limit: int = 16
    other_towers: tuple[tuple[str, ...], ...] = ()
    slime_spec: tuple[str, str] | None = None
    scale_parts: Callable[[Dims, str], int] = _whole
    exports: tuple[tuple[str, str], ...] = ()
    own_quantisation: str = ""
    causal: bool = True
    proof: str = STATED

    def defaults(self) -> dict[str, str]:
        return {variant.kind: variant.options[0] for variant in self.variants}

    def detected(
        self, side: str, dims: Dims, names: Set[str], shape_of: Callable[[str], Shape | None] = unknown_shape
    ) -> dict[str, str]:
        """The options of one side that the names (and shapes) of a checkpoint show, by kind."""
        found = {v.kind: v.detect(dims, names, shape_of) for v in self.variants if v.side == side}
        return {kind: option for kind, option in found.items() if option is not None}
