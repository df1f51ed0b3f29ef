"""Reading pickles of unknown origin without importing a class or running code.

Every global becomes an inert stand-in; calls build inert objects. A pickle that would have called into Python's standard
library (beyond harmless constructors) is refused: no checkpoint needs that.
"""

from __future__ import annotations

import io
import pickle
import sys
from _compat_pickle import IMPORT_MAPPING
from typing import Any

from ...errors import CkptError, error
from .claims import overclaimed
from .constructors import KNOWN, Sealed

HARMLESS_MODULES = frozenset(
    {"argparse", "collections", "copyreg", "datetime", "decimal", "enum", "fractions", "functools", "pathlib", "uuid"}
)
HARMLESS_CALLS = frozenset({("signal", "Signals")})  # Megatron's args hold one
BUILTINS = ("builtins", "__builtin__")


class _Recorder(Sealed):
    """Type of stand-ins: notes that the pickle called it (REDUCE), which NEWOBJ and BUILD do not do."""

    calls: list[tuple[str, str]] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls is not None:
            self.calls.append((self.__module__, self.__qualname__))
        return self.__new__(self, *args, **kwargs)  # type: ignore[arg-type]


class Inert(metaclass=_Recorder):
    """An object of a class that is not imported: its constructor arguments, state, items and nothing else."""

    calls = None
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        made = object.__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.args = (*self.args, item)

    def extend(self, items: Any) -> None:
        self.args = (*self.args, *items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.args = (*self.args, (key, value))

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute from the pickled state."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default


class Storage(tuple[Any, ...]):
    """A torch storage's persistent id: ("storage", class, key, location, numel)."""

    __slots__ = ()


class SafeUnpickler(pickle.Unpickler):
    """Builds plain values, known harmless objects and `Inert` stand-ins. `known` adds stand-ins of the caller's own."""

    def __init__(self, stream: io.BytesIO, known: dict[tuple[str, str], Any] | None = None) -> None:
        super().__init__(stream)
        self.known = KNOWN | (known or {})
        self.calls: list[tuple[str, str]] = []
        self.seen: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (found := self.known.get((module, name))) is not None:
            return found
        if module in BUILTINS and name == "getattr":
            return self._member
        return self._stand_in(module, name)

    def _member(self, owner: Any, name: Any) -> Any:
        """`getattr`: how Python 3.11.0 to 3.11.3 pickle an enum member, and protocol 2 a nested class."""
        if not isinstance(owner, _Recorder) or not isinstance(name, str):
            self.calls.append(("builtins", "getattr"))
            raise pickle.UnpicklingError("getattr of an object")
        return self._stand_in(owner.__module__, f"{owner.__qualname__}.{name}")

    def _stand_in(self, module: str, name: str) -> Any:
        if (module, name) not in self.seen:
            members = {"__module__": module, "__qualname__": name, "calls": self.calls}
            self.seen[module, name] = _Recorder(name, (Inert,), members)
        return self.seen[module, name]

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple):
            raise pickle.UnpicklingError(f"a persistent id of {type(pid).__name__}")
        return Storage(pid)

    def unsafe_calls(self) -> list[str]:
        """Calls into the standard library that no checkpoint needs."""
        return [f"{module}.{name}" for module, name in self.calls if _unsafe_call(module, name)]


def _unsafe_call(module: str, name: str) -> bool:
    module = IMPORT_MAPPING.get(module, module)  # Python 3 still finds Python 2's names: commands is subprocess
    standard = module.partition(".")[0] in sys.stdlib_module_names
    return standard and module not in HARMLESS_MODULES and (module, name) not in HARMLESS_CALLS


def loads(data: bytes, where: str, known: dict[tuple[str, str], Any] | None = None) -> tuple[Any, list[str]]:
    """The value of a pickle and the foreign classes it names; raises CkptError if it is broken or would run code."""
    if claim := overclaimed(data):
        raise _unreadable(where, f"it claims {claim}")
    unpickler = SafeUnpickler(io.BytesIO(data), known)
    try:
        value = unpickler.load()
    except Exception as problem:  # a hostile or truncated pickle can raise anything at all
        if unsafe := unpickler.unsafe_calls():
            raise _unsafe(where, unsafe) from problem
        raise _unreadable(where, f"{type(problem).__name__}: {problem!s:.200}") from problem
    if unsafe := unpickler.unsafe_calls():
        raise _unsafe(where, unsafe)
    return value, [f"{module}.{name}" for module, name in unpickler.seen if module not in HARMLESS_MODULES]


def _unreadable(where: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "pickle-unreadable",
        "a pickle cannot be read",
        where=where,
        expected="a complete pickle",
        actual=actual,
        fix="the file is damaged; restore it",
    )


def _unsafe(where: str, calls: list[str]) -> CkptError:
    return error(
        CkptError,
        "unsafe-pickle",
        "the pickle calls functions that no checkpoint needs; nothing was executed",
        where=where,
        expected="plain data and tensor descriptions",
        actual=", ".join(dict.fromkeys(calls)),
        fix="do not load this file with any tool; get the checkpoint from a source you trust",
    )
