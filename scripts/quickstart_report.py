"""The table at the end of the quickstart, from the JSON that the commands printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def result(work: Path, name: str) -> dict[str, Any]:
    """The result object of one saved `--json` output."""
    value: dict[str, Any] = json.loads((work / f"{name}.json").read_text())["result"]
    return value


def main(work: Path) -> int:
    """Print the table; exit code 0 if every tensor came back bit by bit."""
    inside, back, compared = (result(work, name) for name in ("inspect", "back", "compare"))
    tensors = compared["equal"] + compared["equal_values"] + len(compared["differences"])
    dims = inside["dims"]
    table = Table(
        title="SmolLM2-135M with an MTP layer: Hugging Face -> torch-dist -> Hugging Face", title_style="bold"
    )
    table.add_column("")
    table.add_column("value", style="cyan")
    for label, value in (
        ("family", inside["family"]),
        ("layers x hidden", f"{dims['num_hidden_layers']} x {dims['hidden_size']}"),
        ("MTP layers found, written", f"{inside['mtp_found']}, {back['mtp_written']}"),
        ("vocabulary, padded", f"{dims['vocab_size']}, {inside['padded_vocab_size']}"),
        ("tensors: Megatron, Hugging Face", f"{inside['tensors']}, {tensors}"),
        ("bytes", f"{inside['nbytes'] / 1e6:.0f} MB"),
        ("writing back took", f"{back['timing']['write_s']:.2f} s of {back['timing']['total_s']:.2f} s"),
        ("equal bit by bit", f"{compared['equal']} of {tensors}"),
        ("of them in the MTP layer", f"{compared['mtp_equal']} of {compared['mtp_tensors']}"),
    ):
        table.add_row(label, str(value))
    Console().print("\n", table)
    return 0 if compared["equal"] == tensors else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
