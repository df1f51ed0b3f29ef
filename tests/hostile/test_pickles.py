"""Pickles of unknown origin: nothing runs, calls are refused by name, foreign objects stay inert."""

from __future__ import annotations

import argparse
import builtins
import collections
import enum
import functools
import importlib
import os
import pathlib
import pickle
import posix
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError
from ckpt_tools.stores.torch_dist import opcodes as op
from ckpt_tools.stores.torch_dist.frames import object_frame
from ckpt_tools.stores.torch_dist.pickles import Inert, Storage, loads
from ckpt_tools.stores.torch_dist.reader import open_checkpoint
from tests.stores.make import torch_dist


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


ATTACKS: dict[str, Callable[[str], Call]] = {
    "os.system": lambda mark: Call(os.system, f"touch {mark}"),
    "posix.system": lambda mark: Call(posix.system, f"touch {mark}"),
    "builtins.eval": lambda mark: Call(eval, f"open({mark!r}, 'w')"),
    "builtins.exec": lambda mark: Call(exec, f"open({mark!r}, 'w')"),
    "builtins.open": lambda mark: Call(builtins.open, mark, "w"),
    "builtins.__import__": lambda mark: Call(__import__, "this"),
    "importlib.import_module": lambda mark: Call(importlib.import_module, "this"),
    "subprocess.Popen": lambda mark: Call(subprocess.Popen, ["touch", mark]),
    "subprocess.check_output": lambda mark: Call(subprocess.check_output, ["touch", mark]),
    "runpy.run_path": lambda mark: Call(runpy.run_path, mark),
    "os.mkdir": lambda mark: Call(os.mkdir, mark),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda call: call,
    "in a list": lambda call: [1, [call]],
    "in a dict": lambda call: {"args": {"x": call}},
    "in the state of an object": lambda call: argparse.Namespace(x=call),
    "as an argument": lambda call: Call(collections.OrderedDict, [("x", call)]),
    "in a foreign object": lambda call: Call(Config, call),
}


class Config:
    """A class of a training framework."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Kind(enum.Enum):
    AUTO = "auto"


class Names(list[str]):
    pass


class Table(dict[str, int]):
    pass


class Outer:
    class Inner:
        pass


def refused(data: bytes) -> str:
    with pytest.raises(CkptError) as caught:
        loads(data, "here")
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("unsafe-pickle", "here")
    return finding.actual


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_calls_are_refused_and_nothing_runs(attack: str, place: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    sys.modules.pop("this", None)
    data = pickle.dumps(PLACES[place](ATTACKS[attack](str(mark))), protocol)
    assert refused(data).rpartition(".")[2] == attack.rpartition(".")[2]
    assert not mark.exists()
    assert "this" not in sys.modules


def test_the_attacks_are_real(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(ATTACKS["os.system"](str(tmp_path / "executed"))))
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("commands", "getoutput"),
        ("__builtin__", "execfile"),
        ("urllib2", "urlopen"),
        ("os.path", "exists"),
        ("nt", "system"),
    ],
)
def test_names_of_other_pythons_and_platforms(module: str, name: str) -> None:
    data = op.program(op.call(op.glob(module, name), op.tuple_of((op.text("x"),))))
    assert name in refused(data)


def test_old_opcodes(tmp_path: Path) -> None:
    """INST and OBJ, which pickle itself no longer writes."""
    mark = str(tmp_path / "executed").encode()
    assert refused(b"(S'touch " + mark + b"'\nios\nsystem\n.") == "os.system"
    assert refused(b"(cos\nsystem\nS'touch " + mark + b"'\no.") == "os.system"
    assert not (tmp_path / "executed").exists()


def test_getattr_leads_nowhere(tmp_path: Path) -> None:
    """getattr(os, "system")("touch ...") and getattr of a value."""
    touch = op.tuple_of((op.text(f"touch {tmp_path}/executed"),))
    found = op.call(op.glob("builtins", "getattr"), op.tuple_of((op.glob("os", "path"), op.text("system"))))
    assert refused(op.program(op.call(found, touch))) == "os.path.system"
    value = op.call(op.glob("__builtin__", "getattr"), op.tuple_of((op.text("text"), op.text("__class__"))))
    assert refused(op.program(value)) == "builtins.getattr"
    assert not list(tmp_path.iterdir())


def test_a_refused_call_is_named_even_if_the_pickle_breaks_afterwards() -> None:
    data = op.program(op.call(op.glob("os", "system"), op.tuple_of((op.text("x"),))))
    assert refused(data[:-1] + b"R\xff") == "os.system"


@pytest.mark.parametrize("protocol", range(2, 6))
def test_foreign_objects_survive_inertly(protocol: int) -> None:
    value = {
        "config": Config(3),
        "kind": Kind.AUTO,
        "names": Names(["a", "b"]),
        "table": Table(x=1),
        "inner": Outer.Inner(),
        "inner class": Outer.Inner,
        "deque": collections.deque([1], 5),
        "counts": collections.defaultdict(int, {"a": 1}),
        "array": np.arange(3),
        "dtype": torch.bfloat16,
        "plain": [1, 2.5, "x", None, True, b"raw", (1,), {2}, range(3), 2**80, complex(1, 2)],
    }
    found, foreign = loads(pickle.dumps(value, protocol), "here")
    assert found["plain"] == value["plain"]
    assert found["config"].get("value") == 3
    assert found["config"].get("absent", "default") == "default"
    assert found["kind"].args == ("auto",)
    assert found["names"].args == ("a", "b")
    assert found["table"].args == (("x", 1),)
    assert isinstance(found["inner"], Inert)
    assert found["inner class"].__qualname__ == "Outer.Inner"
    assert {"Config", "Kind", "Names", "Table"} <= {name.rpartition(".")[2] for name in foreign}
    assert not [key for key in ("config", "kind", "names", "table") if type(found[key]) is type(value[key])]


def test_what_megatron_arguments_hold() -> None:
    """Signals, paths, partials, enums by name as Python 3.11.0 wrote them: harmless and none of it refused."""
    args = argparse.Namespace(
        exit_signal=signal.SIGTERM, path=pathlib.Path("x"), made=functools.partial(int, "3"), layers=range(3), n=1
    )
    for protocol in range(2, 6):
        found, _ = loads(pickle.dumps({"args": args}, protocol), "here")
        assert (found["args"].n, found["args"].layers) == (1, range(3))
    by_name = op.call(
        op.glob("__builtin__", "getattr"), op.tuple_of((op.glob("megatron", "AttnBackend"), op.text("auto")))
    )
    found, foreign = loads(op.program(by_name), "here")
    assert found.__qualname__ == "AttnBackend.auto"
    assert "megatron.AttnBackend" in foreign


def test_tensors_stay_descriptions() -> None:
    found, foreign = loads(op.program(op.persistent(op.tuple_of((op.text("storage"), op.text("0"))))), "here")
    assert isinstance(found, Storage)
    assert found == ("storage", "0")
    assert foreign == []


@given(data=st.binary(max_size=60))
def test_noise_is_one_clear_error(data: bytes) -> None:
    try:
        loads(data, "here")
    except CkptError as problem:
        assert problem.findings[0].code in ("pickle-unreadable", "unsafe-pickle")


def test_truncation_at_every_byte() -> None:
    data = pickle.dumps({"a": [1, "x"], "b": Config(1)}, 4)
    for size in range(len(data)):
        with pytest.raises(CkptError) as caught:
            loads(data[:size], "here")
        assert caught.value.findings[0].code == "pickle-unreadable"


@pytest.mark.parametrize("where", [".metadata", "common.pt"])
def test_a_directory_with_a_malicious_pickle(where: str, tmp_path: Path) -> None:
    root, mark = torch_dist(tmp_path / "release"), tmp_path / "executed"
    data = pickle.dumps({"args": ATTACKS["os.system"](str(mark))}, 2)
    (root / where).write_bytes(object_frame(data) if where == "common.pt" else data)
    with pytest.raises(CkptError) as caught:
        open_checkpoint(root)
    finding = caught.value.findings[0]
    assert (finding.code, finding.where) == ("unsafe-pickle", str(root / where))
    assert "system" in finding.actual
    assert not mark.exists()


def test_a_directory_with_an_unknown_class(tmp_path: Path) -> None:
    root = torch_dist(tmp_path)
    args = argparse.Namespace(mtp_num_layers=1, kind=Kind.AUTO, config=Config())
    (root / "common.pt").write_bytes(object_frame(pickle.dumps({"args": args}, 2)))
    checkpoint = open_checkpoint(root)
    assert checkpoint.argument("mtp_num_layers") == 1
    (finding,) = checkpoint.report.findings
    assert (finding.code, finding.severity, finding.where) == ("foreign-classes", "note", str(root / "common.pt"))
    assert "Kind" in finding.actual
    assert "Config" in finding.actual


def test_arguments_of_an_unknown_class_are_no_arguments(tmp_path: Path) -> None:
    root = torch_dist(tmp_path)
    (root / "common.pt").write_bytes(object_frame(pickle.dumps({"args": Config(1)}, 2)))
    assert open_checkpoint(root).argument("mtp_num_layers") is None
