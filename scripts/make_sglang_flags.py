#!/usr/bin/env python3
"""Write ckpt_tools/launch/sglang_flags.json: which server flags every release of SGLang knows, read from its wheels.

    pip download --no-deps -d WHEELS sglang==0.5.6 sglang==0.5.9 ...
    scripts/make_sglang_flags.py WHEELS

Nothing is imported. Flags are the constants of `add_argument("--name", ...)` and the annotated fields of the configuration
classes (`name: A[type, Arg(cli_name=..., aliases=[...], no_cli=...)]`), turned into flags as arg_utils.py does.
The keys of `meta_info` that count drafts are read from the tokenizer manager.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "ckpt_tools" / "launch" / "sglang_flags.json"
SOURCES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/")
METRICS = "sglang/srt/managers/tokenizer_manager.py"
METRIC = re.compile(r"^spec_\w+$")
WHEEL = re.compile(r"^sglang-([^-]+)-")


def flags_of(source: str) -> set[str]:
    """Every long option that a module registers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _name(node.func) == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found |= set(_with_negation(names, any(_name(k.value) == "BooleanOptionalAction" for k in node.keywords)))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found |= set(_field(node.target.id, node.annotation))
    return {name for name in found if name.startswith("--")}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _with_negation(names: list[str], negated: bool) -> Iterator[str]:
    for name in names:
        yield name
        if negated:
            yield "--no-" + name.removeprefix("--")


def _field(field: str, annotation: ast.expr) -> Iterator[str]:
    """`field: A[type, help]` or `field: A[type, Arg(...)]`."""
    if not (isinstance(annotation, ast.Subscript) and _name(annotation.value) in ("A", "Annotated")):
        return
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    arg = next((p for p in parts if isinstance(p, ast.Call) and _name(p.func) == "Arg"), None)
    if arg is None and not any(isinstance(p, (ast.Constant, ast.JoinedStr, ast.BinOp)) for p in parts[1:]):
        return
    given = {k.arg: k.value for k in arg.keywords} if arg else {}
    if ast.unparse(given.get("no_cli", ast.Constant(False))) == "True":
        return
    named = given.get("cli_name")
    names = [named.value if isinstance(named, ast.Constant) else "--" + field.replace("_", "-")]
    if isinstance(aliases := given.get("aliases"), ast.List):
        names += [a.value for a in aliases.elts if isinstance(a, ast.Constant)]
    yield from _with_negation(
        [str(name) for name in names], "BooleanOptionalAction" in ast.unparse(given.get("action", ast.Constant(0)))
    )


def metrics_of(source: str) -> set[str]:
    """Keys of `meta_info` that are about speculation."""
    constants = (
        n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    return {value for value in constants if METRIC.match(value)}


def read_wheel(path: Path) -> tuple[set[str], set[str]]:
    """(flags, metric keys) of a wheel."""
    flags: set[str] = set()
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.startswith(SOURCES) and name.endswith(".py"):
                flags |= flags_of(wheel.read(name).decode())
        return flags, metrics_of(wheel.read(METRICS).decode())


def key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def table(wheels: dict[str, tuple[set[str], set[str]]]) -> dict[str, object]:
    """Versions in order; per flag and per metric one character a version: 1 where it is known."""
    versions = sorted(wheels, key=key)

    def present(which: int) -> dict[str, str]:
        names = sorted(set().union(*(wheels[v][which] for v in versions)))
        return {name.removeprefix("--"): "".join("01"[name in wheels[v][which]] for v in versions) for name in names}

    return {"versions": versions, "flags": present(0), "metrics": present(1)}


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, help="folder with sglang-*.whl")
    paths = sorted(parser.parse_args().wheels.glob("sglang-*.whl"))
    found = {match[1]: read_wheel(path) for path in paths if (match := WHEEL.match(path.name))}
    if not found:
        print("make_sglang_flags: no wheels", file=sys.stderr)
        return 1
    OUT.write_text(json.dumps(table(found), indent=0, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{OUT}: {', '.join(sorted(found, key=key))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
