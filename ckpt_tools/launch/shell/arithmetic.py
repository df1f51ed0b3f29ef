"""Integer arithmetic of `$(( ))` and `(( ))`: what counters, sizes and sums need, and nothing that could run anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

Read = Callable[[str], str]
Write = Callable[[str, str], None]

MOST = 2**63
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)$", re.DOTALL)
_STEP = re.compile(r"^\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*$")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
    ast.FloorDiv: lambda a, b: _quotient(a, b),
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARED: dict[type, Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Unknown(Exception):
    """A value that cannot be known without running the script; the message says why."""


def evaluate(text: str, read: Read, write: Write) -> int:
    """The value of an expression, assignments and ++ included; raises Unknown for what it does not know."""
    if step := _STEP.match(text):
        name, sign = (step[1], step[2]) if step[1] else (step[4], step[3])
        before = _number(read(name), name)
        write(name, str(before + (1 if sign == "++" else -1)))
        return before if step[1] else before + (1 if sign == "++" else -1)
    if found := _ASSIGNMENT.match(text):
        name, sign, rest = found.groups()
        value = evaluate(f"{name} {sign} ({rest})" if sign else rest, read, write)
        write(name, str(value))
        return value
    plain = _NAME.sub(lambda match: f"({_number(read(match[1]), match[1])})", text)
    for shell, python in (("&&", " and "), ("||", " or "), ("!=", "\0"), ("!", " not "), ("\0", "!="), ("/", "//")):
        plain = plain.replace(shell, python)
    try:
        return _value(ast.parse(plain.strip() or "0", mode="eval").body)
    except (SyntaxError, ArithmeticError, ValueError) as problem:
        raise Unknown(f"(({text})) is not understood") from problem


def _number(text: str, name: str) -> int:
    try:
        return int(text or "0", 10)
    except ValueError as problem:
        raise Unknown(f"{name} is {text!r}, not a number") from problem


def _quotient(a: int, b: int) -> int:
    """Towards zero, as C divides."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        right = _value(node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not 0 <= right < 64:
            raise ValueError("shift")
        value = _BINARY[type(node.op)](_value(node.left), right)
        if abs(value) >= MOST:
            raise ValueError("beyond 64 bits")
        return value
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand)
        return int(not inner) if isinstance(node.op, ast.Not) else -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(each)) for each in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError("no arithmetic")
