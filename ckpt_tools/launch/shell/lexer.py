"""Words and operators of a shell script, with quotes, expansions, comments and here-documents.

The grammar is that of POSIX sh (Shell Command Language, section 2) with bash's arrays, `$(( ))` and `(( ))`. Nothing is
expanded here: an expansion is a part of its word.
"""

from __future__ import annotations

from dataclasses import dataclass

BLANK, METACHARACTERS = " \t", " \t\n;&|<>()"
OPERATORS = (";;", "&&", "||", "<<<", "<<-", "<<", ">>", "&>", ">&", "<&", "<>", ">|", "|&", "|", "&", ";", "<", ">")
NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
NAME = NAME_START | frozenset("0123456789")
SPECIAL = "@*#?$!-0123456789"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word. `kind` is "text", "variable" (`text` is what stands between ${ and }), "arithmetic" or "command"."""

    kind: str
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """`parts` in order; `elements` are the words of an array assignment that ends this word (`NAME=(...)`)."""

    parts: tuple[Part, ...]
    line: int
    elements: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str | None:
        """The text of a word without expansions, else None."""
        return "".join(p.text for p in self.parts) if all(p.kind == "text" for p in self.parts) else None

    @property
    def bare(self) -> str | None:
        """The text of a word without expansions and quotes: keywords and names."""
        return None if any(part.quoted for part in self.parts) else self.plain


@dataclass(frozen=True, slots=True)
class Operator:
    """`text` is an operator, a newline, "(", ")", or "((": then `body` is the arithmetic inside."""

    text: str
    line: int
    body: str = ""


Token = Word | Operator


class ScriptError(ValueError):
    """The text is no shell script; the message says what and in which line."""


class Lexer:
    """One pass over the text; `tokens` is everything."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.line = text, 0, line
        self.waiting: list[tuple[str, bool]] = []  # here-documents whose body starts after this line

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while (token := self._next()) is not None:
            found.append(token)
            if isinstance(token, Operator) and token.text in ("<<", "<<-"):
                self._here_document(token.text)
        return found

    def _peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.text[place] if place < len(self.text) else ""

    def _skip_blanks(self) -> None:
        while True:
            if self._peek() and self._peek() in BLANK:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif self._peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _next(self) -> Token | None:
        self._skip_blanks()
        if not (char := self._peek()):
            return None
        line = self.line
        if char == "\n":
            self.at, self.line = self.at + 1, self.line + 1
            self._skip_here_documents()
            return Operator("\n", line)
        if self.text.startswith("((", self.at):
            self.at += 2
            return Operator("((", line, self._enclosed("((", "))"))
        if char in "()":
            self.at += 1
            return Operator(char, line)
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return Operator(operator, line)
        return self._word()

    def _word(self) -> Word:
        parts: list[Part] = []
        line = self.line
        while (char := self._peek()) and char not in METACHARACTERS:
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif char == "\\":
                parts.append(Part("text", self._peek(1), quoted=True))
                self.at += 2
            elif char == "'":
                parts.append(Part("text", self._until("'"), quoted=True))
            elif char == '"':
                self.at += 1
                parts += self._double_quoted()
            elif char in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                start = self.at
                while (c := self._peek()) and c not in METACHARACTERS and c not in "\\'\"$`":
                    self.at += 1
                parts.append(Part("text", self.text[start : self.at]))
        elements = self._array() if self._peek() == "(" and _assigns(parts) else None
        return Word(tuple(parts), line, elements)

    def _array(self) -> tuple[Word, ...]:
        self.at += 1
        line, words = self.line, []
        while (token := self._next()) is not None:
            if isinstance(token, Word):
                words.append(token)
            elif token.text == ")":
                return tuple(words)
            elif token.text != "\n":
                raise ScriptError(f"line {token.line}: {token.text!r} inside an array")
        raise ScriptError(f"line {line}: an array that does not end")

    def _double_quoted(self) -> list[Part]:
        parts: list[Part] = []
        text, line = "", self.line
        while (char := self._peek()) != '"':
            if not char:
                raise ScriptError(f"line {line}: a quote that does not end")
            if char in "$`":
                parts += [Part("text", text, True)] if text else []
                parts.append(self._expansion(quoted=True))
                text = ""
                continue
            if char == "\\" and self._peek(1) in ("$", "`", '"', "\\", "\n"):
                text += "" if self._peek(1) == "\n" else self._peek(1)
                self.line += self._peek(1) == "\n"
                self.at += 2
                continue
            self.line += char == "\n"
            text += char
            self.at += 1
        self.at += 1
        return [*parts, Part("text", text, True)] if text or not parts else parts

    def _expansion(self, quoted: bool) -> Part:
        if self._peek() == "`":
            return Part("command", self._until("`"), quoted)
        self.at += 1
        if self.text.startswith("((", self.at):
            self.at += 2
            return Part("arithmetic", self._enclosed("((", "))"), quoted)
        if self._peek() == "(":
            self.at += 1
            return Part("command", self._enclosed("(", ")"), quoted)
        if self._peek() == "{":
            self.at += 1
            return Part("variable", self._enclosed("{", "}"), quoted)
        if self._peek() == "'" and not quoted:
            return Part("text", self._until("'"), quoted=True)
        if self._peek() and self._peek() in SPECIAL:
            self.at += 1
            return Part("variable", self.text[self.at - 1], quoted)
        start = self.at
        while self._peek() in NAME and (self.at > start or self._peek() in NAME_START):
            self.at += 1
        name = self.text[start : self.at]
        return Part("variable", name, quoted) if name else Part("text", "$", quoted)

    def _until(self, quote: str) -> str:
        """From an opening quote to the closing one; nothing inside is special."""
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise ScriptError(f"line {self.line}: a quote that does not end")
        inside = self.text[self.at + 1 : end]
        self.line += inside.count("\n")
        self.at = end + 1
        return inside

    def _enclosed(self, opening: str, closing: str) -> str:
        """What stands between marks that may nest, quotes respected; the opening ones have been read."""
        start, line, depth = self.at, self.line, len(opening)
        while depth:
            char = self._peek()
            if not char:
                raise ScriptError(f"line {line}: {opening!r} without {closing!r}")
            if char == "\\":
                self.at += 2
            elif char == "'" and opening != "{":
                self._until("'")
            elif char == '"':
                self.at += 1
                self._double_quoted()
            elif char in "$`":
                self._expansion(quoted=False)
            else:
                depth += (char == opening[0]) - (char == closing[0])
                self.line += char == "\n"
                self.at += 1
        return self.text[start : self.at - len(closing)]

    def _here_document(self, operator: str) -> None:
        self._skip_blanks()
        word = self._word()
        self.waiting.append((word.plain or "", operator == "<<-"))

    def _skip_here_documents(self) -> None:
        for delimiter, tabs in self.waiting:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                text = self.text[self.at : end]
                self.at, self.line = min(end + 1, len(self.text)), self.line + 1
                if (text.lstrip("\t") if tabs else text) == delimiter:
                    break
        self.waiting = []


def _assigns(parts: list[Part]) -> bool:
    """Whether a word that is followed by "(" is `NAME=` or `NAME+=`."""
    if len(parts) != 1 or parts[0].kind != "text" or parts[0].quoted or not parts[0].text.endswith("="):
        return False
    name = parts[0].text[:-1].removesuffix("+")
    return bool(name) and name[0] in NAME_START and all(char in NAME for char in name)
