"""What preflight is given: by options, by a YAML file, by both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import NotFound, UsageProblem, error
from ..report import listed


@dataclass(frozen=True, slots=True)
class Inputs:
    """Refs and paths as the user names them, None where the script is to say. `args` and `server_args` are flat lists of flags;
    `variables` are what the script gets from its environment;
    without `sglang_version` the last release is meant."""

    target: str | None = None
    torch_dist: str | None = None
    draft: str | None = None
    script: str | None = None
    args: str = ""
    server_args: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    sglang_version: str | None = None


def read_config(path: Path) -> Inputs:
    """Inputs from a YAML file whose keys are the fields of Inputs; relative paths start at the file.

    Raises UsageProblem and NotFound.
    """
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise error(
            NotFound, "config-unreadable", "cannot read the file", where=str(path), actual=str(problem)
        ) from problem
    except yaml.YAMLError as problem:
        raise error(
            UsageProblem, "preflight-config", "this is no YAML", where=str(path), actual=str(problem)
        ) from problem
    known = {each.name for each in fields(Inputs)}
    values = loaded if isinstance(loaded, dict) else {}
    if not isinstance(loaded, dict) or set(values) - known:
        raise error(
            UsageProblem,
            "preflight-config",
            "the file does not say what to check",
            where=str(path),
            expected=f"keys among {', '.join(sorted(known))}",
            actual=listed(map(str, set(values) - known)) or type(loaded).__name__,
            fix="see docs/preflight.md",
        )
    made = {name: _value(path, name, value) for name, value in values.items() if value is not None}
    return Inputs(**made)


def _value(path: Path, name: str, value: Any) -> Any:
    if name in ("args", "server_args") and isinstance(value, list):
        return " ".join(str(word) for word in value)
    if name == "variables" and isinstance(value, dict):
        return {str(key): str(each) for key, each in value.items()}
    if name == "variables" or isinstance(value, (dict, list)):
        raise error(
            UsageProblem,
            "preflight-config",
            f"{name} has a value that cannot be",
            where=str(path),
            expected="a mapping" if name == "variables" else "text",
            actual=repr(value),
            fix="see docs/preflight.md",
        )
    beside = path.parent / str(value)
    return str(beside) if name in ("target", "torch_dist", "draft", "script") and beside.exists() else str(value)


def merged(base: Inputs, over: Inputs) -> Inputs:
    """Options of the command line win over those of a file."""
    changed = {
        each.name: getattr(over, each.name) for each in fields(Inputs) if getattr(over, each.name) != each.default
    }
    changed["variables"] = {**base.variables, **over.variables}
    changed["args"] = f"{base.args} {over.args}".strip()
    return replace(base, **changed)
