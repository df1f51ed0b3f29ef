"""A command line as flags with their values; argparse's rules: the last one counts, `--flag=value` is `--flag value`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

from .shell.expand import Text

MARK = "--"
SGLANG_PREFIX = "sglang-"


@dataclass(frozen=True, slots=True)
class Given:
    """A flag as it was given. `unknown` says why its value is not known; "" if it is."""

    flag: str
    values: tuple[str, ...]
    where: str
    unknown: str = ""

    @property
    def words(self) -> str:
        return " ".join((MARK + self.flag, *self.values))


@dataclass(frozen=True, slots=True)
class Flags:
    """`given` by name without the dashes; `holes` are words that may hide any number of flags, with the reason."""

    given: dict[str, Given] = field(default_factory=dict)
    holes: tuple[Text, ...] = ()

    def __contains__(self, flag: str) -> bool:
        return flag in self.given

    def __iter__(self) -> Iterator[Given]:
        return iter(self.given.values())

    def first(self, *names: str) -> Given | None:
        """The one of several spellings that is given."""
        return next((self.given[name] for name in names if name in self.given), None)

    def near(self, flag: str) -> str:
        """A given flag that looks like another, for a hint."""
        return next(iter(get_close_matches(flag, self.given, n=1, cutoff=0.85)), "")

    def without(self, prefix: str) -> Flags:
        """The flags that start with a prefix, with it taken off."""
        cut = {name.removeprefix(prefix): given for name, given in self.given.items() if name.startswith(prefix)}
        return Flags(cut, self.holes)


def parse_flags(words: Iterable[Text]) -> Flags:
    """Group words into flags; words before the first flag belong to nothing."""
    given: dict[str, list[Text]] = {}
    holes: list[Text] = []
    current: list[Text] = []
    for word in words:
        if word.unknown and word.value.startswith("${") and "@" in word.value:
            holes.append(word)
        elif word.value.startswith(MARK) and len(word.value) > len(MARK):
            name, equals, value = word.value.removeprefix(MARK).partition("=")
            current = [word, *([Text(value, word.where, word.unknown)] if equals else [])]
            given[name] = current
        else:
            current.append(word)
    return Flags({name: _given(name, texts) for name, texts in given.items()}, tuple(holes))


def _given(name: str, texts: list[Text]) -> Given:
    values = tuple(text.value for text in texts[1:])
    return Given(name, values, texts[0].where, next((why for text in texts for why in text.unknown), ""))
