"""docs/preflight.md names every code that the launch package can report."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)+$")
REPORTING = {"Finding": 0, "error": 1, "note": 0, "warn": 0, "_wrong": None, "_unreadable": None, "_differ": None}
# Codes of inspect and of serve-args, which their own pages and messages explain.
ELSEWHERE = {"config-claims-mtp", "shard-missing"}
# Words of messages and flags that look like codes.
NAMES = {
    "torch-dist",
    "built-in",
    "dp-size",
    "actor-num-nodes",
    "num-query-groups",
    "decoder-first-pipeline-num-layers",
    "expert-tensor-parallel-size",
}
SERVE_ARGS = {"serving.py", "measured.py"}


def codes_of(path: Path) -> set[str]:
    """String constants of the form of a code in calls that report."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in REPORTING:
                constants = [n.value for a in node.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
                found |= {value for value in constants if isinstance(value, str) and CODE.match(value)}
        elif isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "code" for t in node.targets):
            found |= {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


def flags() -> set[str]:
    from ckpt_tools.launch.megatron import COMPARED
    from ckpt_tools.launch.releases import release, versions

    server = set().union(*(release(version).flags for version in versions()))
    sizes = {f"{kind}-model-parallel-size" for kind in ("tensor", "pipeline", "expert")}
    return server | {flag for compared in COMPARED.values() for flag in compared.flags} | sizes


def test_every_code_is_documented() -> None:
    page = (ROOT / "docs" / "preflight.md").read_text()
    documented = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page))
    sources = [p for p in (ROOT / "ckpt_tools" / "launch").glob("*.py") if p.name not in SERVE_ARGS]
    reported = set().union(*map(codes_of, sources))
    assert len(reported) > 40
    assert reported - documented - ELSEWHERE - flags() - NAMES == set()


def test_every_documented_code_is_reported() -> None:
    page = (ROOT / "docs" / "preflight.md").read_text().partition("## What is found")[2]
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    first = {code for cell in cells for code in re.findall(r"`([a-z0-9-]+)`", cell)}
    sources = [p for p in (ROOT / "ckpt_tools").rglob("*.py") if "launch" in p.parts or "chain" in p.name]
    text = "".join(p.read_text() for p in sources)
    assert {code for code in first if f'"{code}"' not in text} == set()
