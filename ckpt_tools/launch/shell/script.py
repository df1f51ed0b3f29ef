"""A launch script followed statement by statement, without running anything, up to the command lines that it would start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from .arithmetic import Unknown, evaluate
from .expand import Text, Variables, expand, single
from .lexer import ScriptError, Word
from .syntax import Choice, Loop, Opaque, Simple, Statement, assigned, assignment, parse

MOST_TURNS, MOST_DEPTH = 10_000, 8


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that may change what the script says and was not followed."""

    where: str
    what: str


@dataclass(slots=True)
class Script:
    """`commands` are the simple commands in order, expanded; `arrays` what every array held at the end; `files` were read."""

    commands: list[tuple[Text, ...]] = field(default_factory=list)
    arrays: dict[str, list[Text]] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def read_script(path: Path, given: dict[str, str]) -> Script:
    """Follow a script. `given` are the variables it gets from outside. Raises ScriptError and OSError."""
    script = Script()
    reader = _Reader(script, Variables(path.absolute(), dict(given)))
    reader.source(path.absolute())
    script.arrays = dict(reader.variables.arrays)
    return script


def read_words(text: str, name: str = "--args") -> list[Text]:
    """A flat list of flags as on a command line; line breaks are blanks. `name` is where it is said to stand.

    Parentheses are no subshell here: `([1]*4)`, as a running process shows it, is a value.
    """
    script = Script()
    flat = " ".join(text.replace("\\\n", " ").split("\n"))
    _Reader(script, Variables(Path(name))).statements(parse(_plain_parentheses(flat)))
    return [word for command in script.commands for word in command]


def _plain_parentheses(text: str) -> str:
    """Parentheses that stand outside of quotes and do not belong to `$(...)` get a backslash."""
    found: list[str] = []
    quote, plain = "", [False]  # of every open parenthesis: whether it is a plain one
    for before, char in zip(" " + text, text, strict=False):
        escaped = before == "\\" and quote != "'"
        if char in "'\"`" and not escaped and quote in ("", char):
            quote = "" if quote else char
        elif char == "(" and not quote and not escaped:
            plain.append(before not in "$(" or plain[-1])
        bare = char in "()" and not quote and not escaped and plain[-1]
        found.append("\\" + char if bare else char)
        if char == ")" and not quote and not escaped and len(plain) > 1:
            plain.pop()
    return "".join(found)


class _Reader:
    def __init__(self, script: Script, variables: Variables) -> None:
        self.script, self.variables, self.depth, self.turns = script, variables, 0, 0

    def source(self, path: Path) -> None:
        outer, self.variables.path = self.variables.path, path
        self.script.files.append(path)
        self.depth += 1
        try:
            self.statements(parse(path.read_text(encoding="utf-8")))
        except ScriptError as problem:
            raise ScriptError(f"{path}: {problem}") from problem
        finally:
            self.depth -= 1
            self.variables.path = outer

    def _doubt(self, line: int, what: str) -> None:
        self.script.doubts.append(Doubt(f"{self.variables.path}:{line}", what))

    def statements(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            if isinstance(statement, Simple):
                self._simple(statement)
            elif isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Choice):
                self._choice(statement)
            else:
                self._skip((statement,), statement.line, "inside a block that is not followed")

    # --- what is not followed

    def _skip(self, statements: tuple[Statement, ...], line: int, why: str) -> None:
        """Names that may have been set are unknown from here on; lists keep what they had, with a doubt."""
        for name, at in dict(assigned(statements)).items():
            if name in self.variables.arrays:
                self._doubt(at, f"{name} may change {why} (line {line})")
            else:
                self.variables.forget(name)
                self.variables.unknown[name] = f"{name} is set {why} (line {at})"

    def _choice(self, choice: Choice) -> None:
        try:
            for condition, body in choice.branches:
                if condition is None:
                    raise Unknown("")
                if self._evaluate(condition, choice.line):
                    self.statements(body)
                    return
        except Unknown:
            for _, body in choice.branches:
                self._skip(body, choice.line, "under a condition that is not evaluated")

    def _evaluate(self, text: str, line: int) -> int:
        return evaluate(
            text,
            self.variables.number,
            lambda name, value: self.variables.set(name, Text(value, self.variables.at(line))),
        )

    def _loop(self, loop: Loop) -> None:
        before = (dict(self.variables.scalars), {name: list(v) for name, v in self.variables.arrays.items()})
        try:
            if loop.header is None:
                for text in [text for word in loop.words for text in expand(word, self.variables)]:
                    if text.unknown:
                        raise Unknown(text.unknown[0])
                    self._turn(loop, text)
                return
            start, condition, step = loop.header.split(";")
            self._evaluate(start, loop.line)
            while self._evaluate(condition, loop.line):
                self._turn(loop, None)
                self._evaluate(step, loop.line)
        except (Unknown, ValueError):
            self.variables.scalars, self.variables.arrays = before
            self._skip((loop,), loop.line, "inside a loop that is not followed")

    def _turn(self, loop: Loop, text: Text | None) -> None:
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Unknown("the loop takes too long")
        if text is not None:
            self.variables.set(loop.name, text)
        self.statements(loop.body)

    # --- simple commands

    def _simple(self, statement: Simple) -> None:
        words = tuple(text for word in statement.words for text in expand(word, self.variables))
        if not words:
            for word in statement.assignments:
                self._assign(word)
            return
        name = words[0].value
        if name in ("source", ".") and len(words) > 1:
            with self._for_one_command(statement.assignments):
                self._source(words[1], statement)
        elif name == "printf" and len(words) > 3 and words[1].value == "-v":
            self._printf(words)
        elif name in ("read", "mapfile", "readarray", "unset"):
            self._skip((statement,), statement.line, f"by {name}")
        else:
            self.script.commands.append(words)

    @contextmanager
    def _for_one_command(self, assignments: tuple[Word, ...]) -> Iterator[None]:
        """`NAME=value command`: only the command has the value."""
        places: tuple[dict[str, Any], ...] = (self.variables.scalars, self.variables.arrays, self.variables.unknown)
        before = [dict(place) for place in places]
        for word in assignments:
            self._assign(word)
        yield
        for found in map(assignment, assignments):
            name = found[0] if found else ""
            self.variables.forget(name)
            for place, kept in zip(places, before, strict=True):
                if name in kept:
                    place[name] = kept[name]

    def _assign(self, word: Word) -> None:
        found = assignment(word)
        assert found is not None
        name, appends, value = found
        if value.elements is not None:
            elements = [text for element in value.elements for text in expand(element, self.variables)]
            kept = self.variables.arrays.get(name, []) if appends else []
            self.variables.set(name, [*kept, *elements])
            return
        text = single(value, self.variables)
        if appends:
            before = self.variables.scalars.get(name, Text("", self.variables.at(word.line)))
            text = Text(before.value + text.value, text.where, (*before.unknown, *text.unknown))
        self.variables.set(name, text)

    def _source(self, target: Text, statement: Simple) -> None:
        if target.unknown:
            self._doubt(statement.line, f"{target.value} is not read: {target.unknown[0]}")
            self.variables.incomplete = True
            return
        path = Path(target.value)
        path = path if path.is_absolute() else self.variables.path.parent / path
        if self.depth >= MOST_DEPTH:
            raise ScriptError(f"line {statement.line}: files source each other without end")
        if not path.is_file():
            self._doubt(statement.line, f"{path} is not there, so nothing of it is known")
            self.variables.incomplete = True
            return
        self.source(path)

    def _printf(self, words: tuple[Text, ...]) -> None:
        """`printf -v NAME FORMAT ARGUMENT...` with %s and %d, as often as the format has them."""
        name, pattern, arguments = words[2].value, words[3].value, [word.value for word in words[4:]]
        unknown = tuple(why for word in words[2:] for why in word.unknown)
        pieces = pattern.replace("%d", "%s").split("%s")
        if "%" in "".join(pieces).replace("%%", "") or len(arguments) > len(pieces) - 1:
            unknown = (*unknown, f"printf {pattern!r} is not followed")
        filled = "".join(piece + arg for piece, arg in zip(pieces, [*arguments, *[""] * len(pieces)], strict=False))
        self.variables.set(name, Text(filled.replace("%%", "%"), words[0].where, unknown))


def launch_command(script: Script) -> tuple[str, list[Text]]:
    """(program, its words) of the last command that starts a Python program with flags; else every list of flags."""
    for words in reversed(script.commands):
        for number, word in enumerate(words):
            module = number and words[number - 1].value == "-m" and not word.value.startswith("-")
            if (word.value.endswith(".py") or module) and any(w.value.startswith("--") for w in words[number + 1 :]):
                return PurePath(word.value).name, list(words[number + 1 :])
    lists = [texts for texts in script.arrays.values() if any(text.value.startswith("--") for text in texts)]
    return "", [text for texts in lists for text in texts]


__all__ = ["Doubt", "Opaque", "Script", "launch_command", "read_script", "read_words"]
