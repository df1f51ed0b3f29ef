#!/usr/bin/env python3
"""Write schemas/<command>.json: the JSON Schema of the one object that ``ckpt-tools <command> --json`` prints.

Every schema follows from the dataclass of the command's result; ``error.json`` is for a command line that names no command.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ckpt_tools.arguments import ModelArguments
from ckpt_tools.cli.envelope import Envelope
from ckpt_tools.compare import Comparison
from ckpt_tools.convert import Result
from ckpt_tools.drafts.export import Exported
from ckpt_tools.drafts.verify import Verification
from ckpt_tools.errors import ExitCode
from ckpt_tools.hub.sending import Pushed
from ckpt_tools.inspection import Inspection
from ckpt_tools.launch.preflight import Preflight
from ckpt_tools.launch.serving import ServeArgs
from ckpt_tools.registry.heads import Heads
from ckpt_tools.speculate.results import SmokeReport
from ckpt_tools.support import Support
from ckpt_tools.tune.drift import Drift
from ckpt_tools.tune.run import TunedHead

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
RESULTS: dict[str, Any] = {
    "convert": Result,
    "inspect": Inspection,
    "compare": Comparison,
    "verify-draft": Verification,
    "extract-draft": Exported,
    "merge-draft": Exported,
    "export-draft": Exported,
    "drift": Drift,
    "tune-draft": TunedHead,
    "registry": Heads,
    "preflight": Preflight,
    "serve-args": ServeArgs,
    "smoke": SmokeReport,
    "push": Pushed,
    "families": Support,
    "megatron-args": ModelArguments,
}
ERROR = "error"


def schema(command: str, result: Any) -> dict[str, Any]:
    """The schema of one command's object; of ``error``, where no command was understood and ``result`` is None."""
    made = TypeAdapter(Envelope[result]).json_schema(mode="serialization")
    title = "What `ckpt-tools` prints with --json" if command == ERROR else f"What `ckpt-tools {command} --json` prints"
    for part in (made, *made["$defs"].values()):
        part |= {"additionalProperties": False, "required": list(part["properties"])}
        for field in part["properties"].values():
            field.pop("title", None)
            field.pop("default", None)
    made["$defs"]["Finding"]["properties"]["severity"]["enum"] = ["error", "warning", "note"]
    made["properties"]["exit_code"]["enum"] = [int(code) for code in ExitCode]
    if command != ERROR:
        made["properties"]["command"]["const"] = command
    return {"$schema": DIALECT, **made, "title": title}


def rendered() -> dict[str, str]:
    """Every schema file by name."""
    every = {**RESULTS, ERROR: None}
    return {f"{name}.json": json.dumps(schema(name, result), indent=2) + "\n" for name, result in every.items()}


def main() -> int:
    """Command line; returns the exit status."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    SCHEMAS.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
        print(SCHEMAS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
