"""The Python files that a model's configs name (`auto_map`) and those that these import. They are read, never run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import Finding
from ..report import listed
from .hf_folder import CONFIG

NAMING = (
    CONFIG,
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
ELSEWHERE = "--"  # `org/name--module.Class`: the code of another repository
OUT = ".."
REFERENCE = re.compile(r"((?:[A-Za-z_]\w*/)*[A-Za-z_]\w*)\.[A-Za-z_]\w*")  # module.Class, as transformers splits it


def code_findings(folder: Path) -> list[Finding]:
    """Errors where a named file or one that it imports is not in the folder, or a name leads out of it."""
    wanted: dict[Path, str] = {}
    unsafe: list[str] = []
    for file, reference in _references(folder):
        if match := REFERENCE.fullmatch(reference):
            wanted.setdefault(Path(match[1] + ".py"), f"named by {file}")
        else:
            unsafe.append(f"{reference!r} in {file}")
    missing: list[str] = []
    todo = list(wanted)
    for path in todo:
        if OUT in path.parts or not (folder / path).is_file():
            missing.append(f"{path} ({wanted[path]})")
            continue
        for imported in _imported(folder, path):
            if imported not in wanted:
                wanted[imported] = f"imported by {path}"
                todo.append(imported)
    return [*_missing(folder, missing), *_unsafe(folder, unsafe)]


def _missing(folder: Path, names: list[str]) -> Iterator[Finding]:
    if names:
        yield Finding(
            "auto-map-missing",
            f"{len(names)} files of the model's own code are not there",
            where=str(folder),
            expected="every file that auto_map names, and what it imports",
            actual="absent: " + listed(names),
            fix="fetch them from the original release; whoever loads the model with its own code needs them",
        )


def _unsafe(folder: Path, names: list[str]) -> Iterator[Finding]:
    if names:
        yield Finding(
            "auto-map-unsafe",
            "auto_map names what is no module of this folder",
            where=str(folder),
            expected="module.Class, a file of the same folder",
            actual=listed(names),
            fix="nobody needs such a name to load a model: correct the config, and mistrust its origin",
        )


def _references(folder: Path) -> Iterator[tuple[str, str]]:
    """(config file, reference) of every class whose code should lie in this folder."""
    for name in NAMING:
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        for reference in _strings(_auto_maps(config)):
            if ELSEWHERE not in reference:
                yield name, reference


def _auto_maps(value: Any) -> list[Any]:
    """The auto_map of a config and of the configs inside it."""
    if not isinstance(value, dict):
        return []
    own = [value["auto_map"]] if "auto_map" in value else []
    return [*own, *(found for key, inner in value.items() if key != "auto_map" for found in _auto_maps(inner))]


def _strings(value: Any) -> Iterator[str]:
    """`auto_map` maps classes to a reference or to a slow and a fast one; tokenizers of old wrote the pair alone."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _imported(folder: Path, path: Path) -> list[Path]:
    """Files of the folder that a module imports relatively; what cannot be parsed imports nothing that could be known."""
    try:
        tree = ast.parse((folder / path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found += _files(folder, path, node)
    return found


def _files(folder: Path, path: Path, node: ast.ImportFrom) -> list[Path]:
    steps = node.level - 1
    if steps > len(path.parent.parts):
        return [
            Path(*[OUT] * (steps - len(path.parent.parts)), *(node.module or "__init__").split(".")).with_suffix(".py")
        ]
    package = Path(*path.parent.parts[: len(path.parent.parts) - steps])
    if node.module:
        return [_file(folder, package.joinpath(*node.module.split(".")))]
    if (folder / package / "__init__.py").is_file():
        return [package / "__init__.py"]
    return [_file(folder, package / alias.name) for alias in node.names if alias.name != "*"]


def _file(folder: Path, module: Path) -> Path:
    package = module / "__init__.py"
    return package if (folder / package).is_file() else module.with_name(module.name + ".py")
