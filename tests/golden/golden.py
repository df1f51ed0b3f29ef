"""Loader of the golden lists: what public releases contain, written down as data.

``models/<name>.json`` holds one release:

- ``source``: the public repositories (at a commit) or texts the facts come from;
- ``trust``: how far the list is trusted, in words; ``names``: ``listed`` (read from a listing of the real files),
  ``derived`` or ``reconstructed`` (filled in by rule); ``complete``: the list covers every tensor of the release;
- ``count`` and ``parameters``: number of tensors and of elements (``total``, per dtype, ``unknown`` for tensors of
  unknown dtype, ``without PREFIX``); ``stated``: which of the two the source states itself. What it does not state is
  the list's own sum and guards the file against accidental edits only;
- ``config``: fields of the release's config.json; ``config_from``: ``raw``, ``printed`` (by transformers, which fills
  in defaults and renames fields: ``dtype``, ``rope_parameters``, ``num_local_experts``) or ``partial``;
- ``mtp``: what is known of multi-token-prediction tensors; ``notes``: other facts;
- ``tensors``: ``[name pattern, shape or null, dtype or null]`` with the dtype spelled as in safetensors headers;
- ``related``: tensor patterns of a sister release, by release name.

A name pattern holds index sets: ``{0..2,5}`` stands for 0, 1, 2 and 5; several sets in one name are their product.
In ``config`` a long list is folded: ``{"$repeat": [[[1, 2], 3], [[4], 1]]}`` is ``[1, 2, 1, 2, 1, 2, 4]`` and
``{"$expand": ["a.{0..1}", "b"]}`` is ``["a.0", "a.1", "b"]``.

``slime_args.json`` holds the Megatron flags of slime's model scripts beside the config values they correspond to.
"""

import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS_DIR = Path(__file__).parent / "models"
_SLIME_ARGS = Path(__file__).parent / "slime_args.json"

Tensor = tuple[tuple[int, ...] | None, str | None]
Rows = tuple[tuple[str, tuple[int, ...] | None, str | None], ...]
FlagValue = bool | int | float | str | list[str]

_INDEX_SET = re.compile(r"\{([0-9.,]+)\}")
_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")


def _indices(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"bad index set {{{text}}}")
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if last < first:
            raise ValueError(f"bad index set {{{text}}}")
        found.extend(range(first, last + 1))
    if len(set(found)) != len(found):
        raise ValueError(f"index set {{{text}}} names an index twice")
    return found


def expand(pattern: str) -> list[str]:
    """Every name a pattern stands for; the last index set runs fastest."""
    pieces = _INDEX_SET.split(pattern)
    if any("{" in text or "}" in text for text in pieces[::2]):
        raise ValueError(f"bad pattern {pattern!r}")
    sets = [_indices(text) for text in pieces[1::2]]
    expanded: list[str] = []
    for chosen in itertools.product(*sets):
        name = pieces[0]
        for index, text in zip(chosen, pieces[2::2], strict=True):
            name += f"{index}{text}"
        expanded.append(name)
    return expanded


def _unfold(value: Any) -> Any:
    if isinstance(value, list):
        return [_unfold(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$repeat"}:
        return [_unfold(item) for block, times in value["$repeat"] for _ in range(times) for item in block]
    if value.keys() == {"$expand"}:
        return [name for pattern in value["$expand"] for name in expand(pattern)]
    return {key: _unfold(item) for key, item in value.items()}


def _expand_all(rows: Rows) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for pattern, shape, dtype in rows:
        for name in expand(pattern):
            if name in tensors:
                raise ValueError(f"{name} is listed twice")
            tensors[name] = (shape, dtype)
    return tensors


@dataclass(frozen=True)
class Golden:
    """One release. ``load`` makes a fresh ``config`` each time, so a test may change it."""

    name: str
    config: dict[str, Any]
    source: str
    trust: str
    complete: bool
    names: str
    count: int
    parameters: dict[str, int]
    stated: tuple[str, ...]
    config_from: str
    mtp: str
    notes: tuple[str, ...] = ()
    rows: Rows = ()
    related: dict[str, Rows] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The top-level ``model_type``."""
        return str(self.config["model_type"])

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of the config: ``text_config`` where there is one, else the config itself."""
        nested: dict[str, Any] = self.config.get("text_config", self.config)
        return nested

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor name with its shape and dtype (None where not known), in the order of the list."""
        return _expand_all(self.rows)

    def related_tensors(self, release: str) -> dict[str, Tensor]:
        """The tensors known of a sister release."""
        return _expand_all(self.related[release])


@dataclass(frozen=True)
class SlimeArgs:
    """One of slime's model scripts."""

    name: str
    flags: dict[str, FlagValue]
    """Flag to value; True for a flag without a value, a list for one with several."""
    config: str | dict[str, Any] | None
    """A golden's name, or the config fields known, or None."""
    compared_with: str | None
    """The release whose config ``corresponds`` was read from."""
    corresponds: dict[str, tuple[str, Any]]
    """Flag to (config field or expression, its value there), also for flags which the script leaves to the default."""
    differences: dict[str, dict[str, Any]]
    """Flags where script and config disagree: {"hf": ..., "slime": ...}."""
    notes: tuple[str, ...]

    def hf_config(self) -> dict[str, Any] | None:
        """The config itself, read from the golden where ``config`` names one."""
        return load(self.config).config if isinstance(self.config, str) else self.config


def _rows(raw: list[Any]) -> Rows:
    return tuple((name, None if shape is None else tuple(shape), dtype) for name, shape, dtype in raw)


def load(name: str) -> Golden:
    """The golden of that name (the file name without .json)."""
    raw: dict[str, Any] = json.loads((MODELS_DIR / f"{name}.json").read_text(encoding="utf-8"))
    return Golden(
        name=name,
        config=_unfold(raw["config"]),
        source=raw["source"],
        trust=raw["trust"],
        complete=raw["complete"],
        names=raw["names"],
        count=raw["count"],
        parameters=raw["parameters"],
        stated=tuple(raw["stated"]),
        config_from=raw["config_from"],
        mtp=raw["mtp"],
        notes=tuple(raw["notes"]),
        rows=_rows(raw["tensors"]),
        related={release: _rows(rows) for release, rows in raw.get("related", {}).items()},
    )


def names() -> list[str]:
    """Every golden's name, sorted."""
    return sorted(path.name.removesuffix(".json") for path in MODELS_DIR.glob("*.json"))


def with_family(model_type: str) -> list[Golden]:
    """The goldens whose top-level ``model_type`` is the one given."""
    return [golden for golden in map(load, names()) if golden.family == model_type]


def slime_args() -> dict[str, SlimeArgs]:
    """slime's model scripts by model name."""
    raw: dict[str, Any] = json.loads(_SLIME_ARGS.read_text(encoding="utf-8"))
    return {
        name: SlimeArgs(
            name=name,
            flags=entry["flags"],
            config=entry["config"],
            compared_with=entry["compared_with"],
            corresponds={flag: (fact[0], fact[1]) for flag, fact in entry["corresponds"].items()},
            differences=entry["differences"],
            notes=tuple(entry["notes"]),
        )
        for name, entry in raw["models"].items()
    }


def slime_notes() -> list[str]:
    """Notes that hold for all of slime's model scripts."""
    raw: dict[str, Any] = json.loads(_SLIME_ARGS.read_text(encoding="utf-8"))
    return [str(note) for note in raw["notes"]]
