"""Processes that write to one registry at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ckpt_tools.registry.base import Place
from ckpt_tools.registry.manifest import Entry, Measured
from ckpt_tools.registry.store import read_all

WRITER = """
import sys
from pathlib import Path
from ckpt_tools.registry.manifest import Entry
from ckpt_tools.registry.store import opened, put
from ckpt_tools.errors import OutputExists
place, number = opened(sys.argv[1], {}), sys.argv[2]
text = Path(sys.argv[3]).read_text()
for i in range(int(sys.argv[4])):
    put(place, Entry.model_validate_json(text).model_copy(update={"name": f"w{number}-{i}"}))
    try:
        put(place, Entry.model_validate_json(text).model_copy(update={"name": f"all-{i}", "kind": number}))
        print(f"all-{i}", flush=True)
    except OutputExists:
        pass
"""


def an_entry() -> Entry:
    return Entry(
        name="x",
        added="2026-01-01T00:00:00+00:00",
        written_by="test",
        location="org/head",
        kind="eagle3",
        format="sglang",
        architecture="A",
        target_location="org/target",
        target={"ref": "org/target"},
        files={},
        verified={"server": "sglang"},
        measured=Measured(accept_length=2),
    )


def assert_nothing_is_lost(place: Place, scratch: Path, writers: int, rounds: int) -> None:
    """Every name of their own is there, every shared name was won exactly once, every file is whole."""
    (scratch / "entry").write_text(an_entry().model_dump_json())
    command = [sys.executable, "-c", WRITER, place.where]
    running = [
        subprocess.Popen(
            [*command, str(number), str(scratch / "entry"), str(rounds)], stdout=subprocess.PIPE, text=True
        )
        for number in range(writers)
    ]
    won = [(name, str(n)) for n, one in enumerate(running) for name in one.communicate(timeout=300)[0].split()]
    assert [one.returncode for one in running] == [0] * writers
    entries, findings = read_all(place)
    assert findings == []
    own = {f"w{number}-{i}" for number in range(writers) for i in range(rounds)}
    shared = {f"all-{i}" for i in range(rounds)}
    assert {entry.name for entry in entries} == own | shared
    assert sorted(won) == sorted((entry.name, entry.kind) for entry in entries if entry.name in shared)
