"""Statements of a shell script: simple commands, loops and conditions. Whatever else there is, is kept as names it may set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .lexer import NAME, NAME_START, Lexer, Operator, ScriptError, Token, Word

DECLARING = ("export", "local", "declare", "readonly", "typeset")
REDIRECTIONS = ("<", ">", ">>", "&>", ">&", "<&", "<>", ">|", "<<<")
CONDITIONAL = ("&&", "||")
SEPARATORS = ("\n", ";", "&", "|", "|&", ";;", *CONDITIONAL)
ENDS = ("done", "fi", "else", "elif", "then", "do", "esac", "}")


@dataclass(frozen=True, slots=True)
class Simple:
    """`NAME=value ... command arguments`; the words of assignments are whole."""

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`for ((header))` if `header` is not None, else `for name in words`."""

    header: str | None
    name: str
    words: tuple[Word, ...]
    body: tuple[Statement, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`if`: (condition, body) in order. A condition is the text inside `(( ))`, None if it is anything else, "1" for else."""

    branches: tuple[tuple[str | None, tuple[Statement, ...]], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """`while`, `case`, a subshell: what it does is not known."""

    body: tuple[Statement, ...]
    line: int


Statement = Simple | Loop | Choice | Opaque


def assignment(word: Word) -> tuple[str, bool, Word] | None:
    """(name, whether it appends, value) of `NAME=value` and `NAME+=value`, or None."""
    if not word.parts or word.parts[0].kind != "text" or word.parts[0].quoted:
        return None
    first = word.parts[0]
    name, equals, rest = first.text.partition("=")
    appends, name = name.endswith("+"), name.removesuffix("+")
    if not equals or not name or name[0] not in NAME_START or any(char not in NAME for char in name):
        return None
    parts = (type(first)("text", rest), *word.parts[1:]) if rest else word.parts[1:]
    return name, appends, Word(parts, word.line, word.elements)


def parse(text: str, line: int = 1) -> tuple[Statement, ...]:
    """The statements of a script; raises ScriptError where quotes, brackets or blocks do not end."""
    parser = _Parser(Lexer(text, line).tokens())
    found = parser.statements(())
    if (token := parser.peek()) is not None:
        shown = token.text if isinstance(token, Operator) else token.plain
        raise ScriptError(f"line {token.line}: {shown!r} without its beginning")
    return found


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def _is(self, text: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return isinstance(token, Operator) and token.text == text

    def _keyword(self) -> str:
        token = self.peek()
        return (token.bare or "") if isinstance(token, Word) else ""

    def _expect(self, keyword: str, line: int) -> None:
        self._separators()
        if self._keyword() != keyword:
            raise ScriptError(f"line {line}: a block without {keyword!r}")
        self.at += 1

    def _separators(self) -> bool:
        """Pass what separates statements; whether the next one depends on how the last one ended."""
        depends = False
        while isinstance(token := self.peek(), Operator) and token.text in SEPARATORS:
            depends = token.text in CONDITIONAL or (depends and token.text == "\n")
            self.at += 1
        return depends

    def statements(self, ends: tuple[str, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while True:
            depends = self._separators()
            if self.peek() is None or self._keyword() in (ends or ENDS) or self._is(")"):
                return tuple(found)
            found.append(_perhaps(self._statement()) if depends else self._statement())

    def _statement(self) -> Statement:
        token = self.peek()
        assert token is not None
        keyword = self._keyword()
        if isinstance(token, Operator):
            return self._grouped(token)
        if keyword == "for":
            return self._loop(token.line)
        if keyword == "if":
            return self._choice(token.line)
        if keyword in ("while", "until", "select", "case", "function", "{"):
            return self._opaque(keyword, token.line)
        if self._is("(", 1) and self._is(")", 2):  # name() { ...; }
            self.at += 3
            return Opaque(self.statements(()) if self._keyword() != "{" else self._braces(token.line), token.line)
        return self._simple(token.line)

    def _grouped(self, token: Operator) -> Statement:
        self.at += 1
        if token.text == "((":
            return Opaque((), token.line)
        if token.text != "(":
            raise ScriptError(f"line {token.line}: {token.text!r} where a command was expected")
        body = self.statements(())
        if not self._is(")"):
            raise ScriptError(f"line {token.line}: '(' without ')'")
        self.at += 1
        return Opaque(body, token.line)

    def _braces(self, line: int) -> tuple[Statement, ...]:
        self.at += 1
        body = self.statements(("}",))
        self._expect("}", line)
        return body

    def _opaque(self, keyword: str, line: int) -> Opaque:
        if keyword == "{":
            return Opaque(self._braces(line), line)
        self.at += 1
        if keyword == "function":
            self.at += 1
            while self._is("(") or self._is(")"):
                self.at += 1
            self._separators()
            return Opaque(self._braces(line), line)
        end = "esac" if keyword == "case" else "done"
        body: list[Statement] = []
        while True:
            body += self.statements((end, "do"))
            if self.peek() is None:
                raise ScriptError(f"line {line}: {keyword!r} without {end!r}")
            ended = self._keyword() == end
            self.at += 1
            if ended:
                return Opaque(tuple(body), line)

    def _loop(self, line: int) -> Loop:
        self.at += 1
        token = self.peek()
        header, name, words = None, "", []
        self.at += 1
        if isinstance(token, Operator) and token.text == "((":
            header = token.body
        else:
            name = (token.bare or "") if isinstance(token, Word) else ""
            if self._keyword() == "in":
                self.at += 1
                while isinstance(word := self.peek(), Word):
                    words.append(word)
                    self.at += 1
        self._expect("do", line)
        body = self.statements(("done",))
        self._expect("done", line)
        return Loop(header, name, tuple(words), body, line)

    def _choice(self, line: int) -> Choice:
        branches: list[tuple[str | None, tuple[Statement, ...]]] = []
        while True:
            keyword = self._keyword()
            self.at += 1
            if keyword == "fi":
                return Choice(tuple(branches), line)
            condition: str | None = "1"
            if keyword in ("if", "elif"):
                token = self.peek()
                alone = isinstance(token, Operator) and token.text == "((" and self._ends(1)
                condition = token.body if isinstance(token, Operator) and alone else None
                self.statements(("then",))
                self._expect("then", line)
            branches.append((condition, self.statements(("elif", "else", "fi"))))
            if self._keyword() not in ("elif", "else", "fi"):
                raise ScriptError(f"line {line}: 'if' without 'fi'")

    def _ends(self, ahead: int) -> bool:
        return self._is(";", ahead) or self._is("\n", ahead)

    def _simple(self, line: int) -> Simple:
        words: list[Word] = []
        while (token := self.peek()) is not None:
            if isinstance(token, Word):
                words.append(token)
                self.at += 1
            elif token.text in REDIRECTIONS:
                if words and (words[-1].bare or "").isdigit() and token.text != "<<<":
                    words.pop()
                self.at += 2
            elif token.text in ("<<", "<<-"):
                self.at += 1
            else:
                break
        declaring = words and words[0].bare in DECLARING
        rest = words[1:] if declaring else words
        count = 0
        while count < len(rest) and assignment(rest[count]):
            count += 1
        if declaring:
            return Simple(tuple(word for word in rest if assignment(word)), (), line)
        return Simple(tuple(rest[:count]), tuple(rest[count:]), line)


def _perhaps(statement: Statement) -> Statement:
    """What follows && or ||: a command is followed all the same, what it sets is not known."""
    sets = not isinstance(statement, Simple) or (statement.assignments and not statement.words)
    if sets or (isinstance(statement, Simple) and any(_set_by_command(statement))):
        return Choice(((None, (statement,)),), statement.line)
    return statement


def assigned(statements: tuple[Statement, ...]) -> Iterator[tuple[str, int]]:
    """(name, line) of everything that may be assigned somewhere inside."""
    for statement in statements:
        if isinstance(statement, Simple):
            for word in () if statement.words else statement.assignments:
                if found := assignment(word):
                    yield found[0], word.line
            yield from _set_by_command(statement)
        elif isinstance(statement, Choice):
            for _, body in statement.branches:
                yield from assigned(body)
        else:
            if isinstance(statement, Loop) and statement.name:
                yield statement.name, statement.line
            yield from assigned(statement.body)


def _set_by_command(statement: Simple) -> Iterator[tuple[str, int]]:
    """Builtins that set the variables they are given."""
    names = [word.bare for word in statement.words]
    if names[:2] == ["printf", "-v"] and len(names) > 2 and names[2]:
        yield names[2], statement.line
    if names[:1] in (["read"], ["mapfile"], ["readarray"], ["unset"]):
        for name in names[1:]:
            if name and not name.startswith("-"):
                yield name, statement.line
