"""Expansion of words: variables, arrays, defaults, arithmetic; what only a running shell could know stays as it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .arithmetic import Unknown, evaluate
from .lexer import Lexer, Part, Word

ANY = frozenset("*@")
MOST_NUMBERS = 10_000
_REFERENCE = re.compile(r"^(#?)([A-Za-z_]\w*|[0-9@*#?$!-])(?:\[([^]]*)\])?(?:(:?[-=?+]|%%?|##?)(.*))?$", re.DOTALL)
_SELF = r"\"?\$(?:\{BASH_SOURCE(?:\[0\])?\}|BASH_SOURCE|0|\{0\})\"?"
_DIRNAME = rf"\$\(\s*dirname\s+(?:--\s+)?{_SELF}\s*\)"
_THIS_FOLDER = re.compile(
    rf"^\s*(?:dirname\s+(?:--\s+)?{_SELF}|cd\s+(?:--\s+|-P\s+)*\"?{_DIRNAME}([^\"\s&;]*)\"?[^&;]*(?:&>\s*\S+\s*)?"
    rf"(?:2>\s*\S+\s*)?(?:>\s*\S+\s*)?&&\s*pwd(?:\s+-P)?)\s*$"
)
_JOINED = re.compile(r"^\s*IFS=(?:'([^']*)'|\"([^\"]*)\"|(\S*))\s*;\s*echo\s+(.*)$", re.DOTALL)
_ECHO = re.compile(r"^\s*echo\s+([^|;&<>]*)$", re.DOTALL)

_SEQUENCE = re.compile(r"^\s*seq((?:\s+-?\d+){1,3})\s*$")


class Text(NamedTuple):
    """An expanded word and where it stands. `unknown` says why parts of it are still as written; empty for the real value."""

    value: str
    where: str
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class Variables:
    """What a script has set so far: text or lists. `unknown` are names that something set which was not followed, and why.

    `given` are values from outside (the environment); `path` is the script that is being read; `incomplete` where a file that
    it sources could not be.
    """

    path: Path
    given: dict[str, str] = field(default_factory=dict)
    incomplete: bool = False
    scalars: dict[str, Text] = field(default_factory=dict)
    arrays: dict[str, list[Text]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    separator: str = " "

    def at(self, line: int) -> str:
        return f"{self.path.name}:{line}"

    def forget(self, name: str) -> None:
        for kept in (self.scalars, self.arrays, self.unknown):
            kept.pop(name, None)

    def set(self, name: str, value: Text | list[Text]) -> None:
        self.forget(name)
        if isinstance(value, list):
            self.arrays[name] = value
        else:
            self.scalars[name] = value

    def scalar(self, name: str) -> Text | None:
        """The value, None if nothing set it; raises Unknown if something did that was not followed."""
        if name in self.unknown:
            raise Unknown(self.unknown[name])
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else None
        if name in self.scalars:
            return self.scalars[name]
        return Text(self.given[name], "environment") if name in self.given else None

    def elements(self, name: str) -> list[Text] | None:
        if name in self.unknown:
            raise Unknown(self.unknown[name])
        if name in self.arrays:
            return self.arrays[name]
        value = self.scalar(name)
        return None if value is None else [value]

    def number(self, name: str) -> str:
        """A variable inside arithmetic: unset is 0 to a shell, but not to us."""
        value = self.scalar(name)
        if value is None or value.unknown:
            raise Unknown(value.unknown[0] if value else f"{name} is not set")
        return value.value


def expand(word: Word, variables: Variables) -> list[Text]:
    """The fields that a word becomes: none for an empty unquoted value, several for an array."""
    fields: list[Text] = []
    current: Text | None = None
    for part in word.parts:
        for number, piece in enumerate(_pieces(part, variables, word.line)):
            if piece is None or (number and current is not None):  # a field ends here
                fields += [current] if current is not None else []
                current = None
            if piece is not None:
                current = piece if current is None else _joined(current, piece)
    return [*fields, *([current] if current is not None else [])]


def single(word: Word, variables: Variables) -> Text:
    """The value of an assignment: one text, never split."""
    whole = Text("", variables.at(word.line))
    for part in word.parts:
        pieces = _pieces(Part(part.kind, part.text, quoted=True), variables, word.line)
        for number, piece in enumerate(pieces):
            if piece is not None:
                whole = _joined(whole, Text(" " * bool(number) + piece.value, piece.where, piece.unknown))
    return whole


def _joined(a: Text, b: Text) -> Text:
    return Text(a.value + b.value, a.where, (*a.unknown, *b.unknown))


def _pieces(part: Part, variables: Variables, line: int) -> list[Text | None]:
    """What a part contributes: one piece per field, None where an unquoted blank ends a field."""
    if part.kind == "text":
        return [Text(part.text, variables.at(line))]
    written = {"variable": f"${{{part.text}}}", "arithmetic": f"$(({part.text}))", "command": f"$({part.text})"}[
        part.kind
    ]
    try:
        found = _known(part, variables, line)
    except Unknown as problem:
        return [Text(written, variables.at(line), (str(problem),))]
    if part.quoted:
        return list(found)
    split: list[Text | None] = []
    for text in found:
        split += [None] * (text.value[:1].isspace() and not text.unknown)
        for number, piece in enumerate(text.value.split() if not text.unknown else [text.value]):
            split += [None] * bool(number) + [Text(piece, text.where, text.unknown)]
        split += [None] * (len(found) > 1 or (text.value[-1:].isspace() and not text.unknown))
    while split and len(found) > 1 and split[-1] is None:
        split.pop()
    return split


def _known(part: Part, variables: Variables, line: int) -> list[Text]:
    if part.kind == "arithmetic":
        value = evaluate(
            part.text, variables.number, lambda name, text: variables.set(name, Text(text, variables.at(line)))
        )
        return [Text(str(value), variables.at(line))]
    if part.kind == "command":
        return [_command(part.text, variables, line)]
    return _variable(part.text, variables, line)


def _command(text: str, variables: Variables, line: int) -> Text:
    """The few command substitutions whose output follows from the text alone."""
    if found := _THIS_FOLDER.match(text):
        folder = variables.path.parent / (found[1] or "").lstrip("/")
        return Text(str(folder.resolve()), variables.at(line))
    separator, echoed = variables.separator, _ECHO.match(text)
    if joined := _JOINED.match(text):
        separator, echoed = (
            next((s for s in joined.groups()[:3] if s is not None), " "),
            _ECHO.match(f"echo {joined[4]}"),
        )
    if numbers := _SEQUENCE.match(text):
        return Text(_sequence([int(n) for n in numbers[1].split()]), variables.at(line))
    if not echoed:
        raise Unknown(f"$({' '.join(text.split())}) would have to be run")
    before, variables.separator = variables.separator, separator
    try:
        words = [token for token in Lexer(echoed[1], line).tokens() if isinstance(token, Word)]
        fields = [field for word in words for field in expand(word, variables)]
    finally:
        variables.separator = before
    return Text(" ".join(f.value for f in fields), variables.at(line), tuple(why for f in fields for why in f.unknown))


def _sequence(numbers: list[int]) -> str:
    """What `seq` prints: [first [step]] last."""
    first, step, last = {1: (1, 1), 2: (numbers[0], 1), 3: (numbers[0], numbers[1 % len(numbers)])}[len(numbers)] + (
        numbers[-1],
    )
    if not step or abs(last - first) // abs(step) > MOST_NUMBERS:
        raise Unknown("seq without end")
    return " ".join(map(str, range(first, last + (1 if step > 0 else -1), step)))


def _variable(text: str, variables: Variables, line: int) -> list[Text]:
    reference = _REFERENCE.match(text)
    if not reference:
        raise Unknown(f"${{{text}}} is not understood")
    count, name, index, action, rest = reference.groups()
    if name in ("0", "BASH_SOURCE"):
        return [Text(str(variables.path), variables.at(line))]
    if index is not None and index in ANY and not action:
        elements = variables.elements(name)
        if elements is None and variables.incomplete:
            raise Unknown(f"{name} is not set, and a sourced file was not read")
        elements = elements or []
        if count:
            return [Text(str(len(elements)), variables.at(line))]
        if index == "@":
            return elements
        unknown = tuple(why for element in elements for why in element.unknown)
        return [Text(variables.separator[:1].join(element.value for element in elements), variables.at(line), unknown)]
    if count or (index and (index in ANY or action)):
        raise Unknown(f"${{{text}}} is not understood")
    value = _element(name, index, variables)
    if action:
        return _acted(text, action, rest, value, variables, line)
    if value is None:
        raise Unknown(f"{name} is not set")
    return [value]


def _element(name: str, index: str | None, variables: Variables) -> Text | None:
    if not index:
        return variables.scalar(name)
    number = evaluate(index, variables.number, lambda *_: None)
    elements = variables.elements(name) or []
    return elements[number] if -len(elements) <= number < len(elements) else None


def _acted(text: str, action: str, rest: str, value: Text | None, variables: Variables, line: int) -> list[Text]:
    """`${NAME:-default}` and its relatives; removal of a literal prefix or suffix."""
    if action[0] in "%#":
        if value is None or value.unknown or any(char in rest for char in "*?[$`"):
            raise Unknown(f"${{{text}}} is not understood")
        return [
            value._replace(value=value.value.removesuffix(rest) if action[0] == "%" else value.value.removeprefix(rest))
        ]
    there = value is not None and (bool(value.value) or not action.startswith(":"))
    if action[-1] == "+":
        return [_rest(rest, variables, line)] if there else [Text("", variables.at(line))]
    if there and value is not None:
        return [value]
    if action[-1] == "?":
        raise Unknown(f"{text.partition(action)[0]} is not set")
    return [_rest(rest, variables, line)]


def _rest(text: str, variables: Variables, line: int) -> Text:
    """The word after `:-`; blanks in it are kept."""
    parts = tuple(
        part for token in Lexer(f'"{text}"', line).tokens() if isinstance(token, Word) for part in token.parts
    )
    if text[:1] in "\"'":
        parts = tuple(part for token in Lexer(text, line).tokens() if isinstance(token, Word) for part in token.parts)
    return single(Word(parts, line), variables)
