"""Megatron's layer patterns, read as Megatron would evaluate them and without evaluating anything."""

from __future__ import annotations

import ast
from typing import Any

MOST_ENTRIES = 10_000  # of a layer pattern
QUOTES = "'\""


def frequencies(text: str) -> list[int] | int:
    """Megatron's layer patterns: a number, or a list expression such as [0]*3+[1]*58; raises ValueError.

    Megatron evaluates it; here it is read. Quotes that became a part of the value are taken off.
    """
    try:
        value: list[int] | int = _pattern(ast.parse(unquoted(text).strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError) as problem:
        raise ValueError(text) from problem
    if isinstance(value, list) and not all(type(each) is int for each in value):
        raise ValueError(text)
    return value


def unquoted(text: str) -> str:
    """The text without the quotes around it."""
    text = text.strip()
    while len(text) > 1 and text[0] == text[-1] and text[0] in QUOTES:
        text = text[1:-1].strip()
    return text


def _pattern(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        return [_pattern(each) for each in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _pattern(node.left), _pattern(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if _size(left) * _size(right) > MOST_ENTRIES:
            raise ValueError("too long")
        return left * right
    raise ValueError("no pattern")


def _size(value: list[int] | int) -> int:
    return len(value) if isinstance(value, list) else abs(value)
