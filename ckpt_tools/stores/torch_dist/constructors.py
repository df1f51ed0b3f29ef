"""What of Python's own a pickle of unknown origin may build: no more than it holds, and nothing that outlives it."""

from __future__ import annotations

import argparse
import types
from collections import OrderedDict
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, NamedTuple


class Sealed(type):
    """Type of classes that a pickle can name: its BUILD opcode may fill instances, but not change the class for everybody."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise UnpicklingError(f"a pickle changes the class {cls.__qualname__}")


class Constructor(NamedTuple):
    """A function whose first argument, if any, is one of `takes`: bytearray(10**10), list(range(10**9)) would fill memory."""

    build: Callable[..., Any]
    takes: tuple[type, ...]

    def __call__(self, *arguments: Any) -> Any:
        if arguments and not isinstance(arguments[0], self.takes):
            raise UnpicklingError(f"{self.build.__name__} of {type(arguments[0]).__name__}")
        return self.build(*arguments)


class Arguments(argparse.Namespace, metaclass=Sealed):
    """argparse.Namespace, as Megatron stores its arguments."""


def _reconstruct(cls: Any, base: Any, state: Any) -> Any:
    return cls.__new__(cls)


def _latin1(text: str, encoding: str) -> bytes:
    """How protocol 2 stores bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise UnpicklingError(f"text in {encoding!r:.40}")
    return text.encode("latin-1")


ITEMS = (list, tuple)
BUILTINS: dict[str, Any] = {t.__name__: t for t in (bool, complex, float, int, range, slice)} | {
    t.__name__: Constructor(t, takes)
    for t, takes in (
        *((kind, ITEMS) for kind in (list, tuple, set, frozenset)),
        *((bytes, (bytes,)), (bytearray, (bytes, str)), (str, (str,)), (dict, (*ITEMS, dict))),
    )
}
BUILTINS |= {"xrange": range, "unicode": BUILTINS["str"], "long": int}  # protocol 2 keeps Python 2's names
KNOWN: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Arguments,
    ("types", "SimpleNamespace"): types.SimpleNamespace,
    ("collections", "OrderedDict"): OrderedDict,
    ("copyreg", "_reconstructor"): Constructor(_reconstruct, (type,)),
    ("_codecs", "encode"): Constructor(_latin1, (str,)),
    ("torch", "Size"): Constructor(tuple, ITEMS),
}
KNOWN |= {(module, name): found for module in ("builtins", "__builtin__") for name, found in BUILTINS.items()}
