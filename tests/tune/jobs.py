"""Short tuning runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckpt_tools.tune.run import Job, Reading
from ckpt_tools.tune.settings import Settings

QUICK = Settings(
    rounds=4,
    prompts=3,
    new_tokens=12,
    updates=6,
    batch=3,
    replay=2,
    learning_rate=3e-3,
    warmup=0,
    temperature=0.0,
    save_every=2,
)
PROMPT_IDS = [[i, i + 1, 2 * i] for i in range(3, 12)]
PROMPTS = [f"w{i} w{i + 1} w{2 * i + 3}" for i in range(3, 12)]


def prompts_in(folder: Path) -> Path:
    file = folder / "prompts.json"
    file.write_text(json.dumps(PROMPTS))
    return file


def job(folders: tuple[Path, Path], folder: Path, **changes: Any) -> Job:
    reading = Reading(prompts=str(prompts_in(folder)), held_out=2)
    settings = replace(QUICK, **{k: changes.pop(k) for k in list(changes) if hasattr(QUICK, k)})
    return replace(
        Job(folders[0], folders[1], folder / "out", reading, settings, state=folder / "state", device="cpu"), **changes
    )
