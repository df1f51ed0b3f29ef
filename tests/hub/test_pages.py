"""The pages for users, followed as they stand: every command line runs, and every file that they name is there."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Command, Tiny
from tests.hub.server import HubServer
from tests.launch.world import MODEL, MTP, SERVER, SIZES
from tests.tune.heads import pair

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MIMO = "XiaomiMiMo/MiMo-7B-RL"
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([\w./-]+/[\w./-]*|\w+\.(?:py|md|sh|json))`")
# They say what is wrong with a head or a job, and heads and jobs of tests are small: findings are an answer as well.
JUDGES = ("smoke", "drift", "preflight", "compare")
SCRIPT = f"""#!/bin/bash
ray job submit -- python3 train.py --hf-checkpoint {MIMO} --ref-load mimo-td \\
   {MODEL} {MTP} {SIZES} {SERVER}
"""


def lines(page: str) -> list[str]:
    """The command lines of a page, in order."""
    blocks = FENCE.findall((DOCS / page).read_text())
    return [line for block in blocks for line in block.splitlines() if line.startswith("ckpt-tools ")]


def follow(page: str, command: Command) -> None:
    """Run a page's lines in the current directory; `> file` keeps what was printed."""
    assert lines(page)
    for line in lines(page):
        words = shlex.split(line, comments=True)[1:]
        file = words[words.index(">") + 1] if ">" in words else ""
        ran = command(*(words[: words.index(">")] if file else words), code=None)
        assert ran.code == 0 or (ran.code == 1 and words[0] in JUDGES), f"{line}\n{ran.out}{ran.err}"
        if file:
            Path(file).write_text(ran.out)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("CKPT_TOOLS_REGISTRY", str(tmp_path / "registry"))
    return tmp_path / "here"


def train(hub: HubServer, tiny: Tiny, command: Command, here: Path) -> None:
    """The model on the Hub, a launch script, and a run with the converted weights as its 500th iteration."""
    hub.add(MIMO, tiny("mimo", heads=4, kv_heads=2, mtp=1))
    (here / "run-mimo-7B.sh").write_text(SCRIPT)
    command("convert", MIMO, here / "RUN", "--tp", 2)
    (here / "RUN" / "release").rename(here / "RUN" / "iter_0000500")


def publish(hub: HubServer, tiny: Tiny, command: Command, here: Path) -> None:
    """A target with an EAGLE-3 head that a trainer left, a run with an MTP layer, and an empty registry."""
    hub.add("ORG/REGISTRY")
    target, head = pair("eagle3", here.parent)
    hub.add("ORG/TARGET", target)
    head.rename(here / "MY_EAGLE3_RUN")
    model = tiny("mimo", mtp=1)
    hub.add("ORG/MTP_TARGET", model)
    command("convert", model, here / "RUN")
    (here / "RUN" / "release").rename(here / "RUN" / "iter_0000500")


def debug(hub: HubServer, tiny: Tiny, command: Command, here: Path) -> None:
    """A target and its head, twice; a model before and after, and its torch-dist directory."""
    target, head = pair("eagle3", here.parent)
    for name in ("TARGET", "OLD_TARGET", "NEW_TARGET"):
        shutil.copytree(target, here / name)
    command("export-draft", head, here / "HEAD", "--target", target)
    model = tiny("mimo", mtp=1)
    for name in ("ORIGINAL", "EXPORTED"):
        shutil.copytree(model, here / name)
    command("convert", model, here / "TORCH_DIST")


WORLDS: dict[str, Callable[[HubServer, Tiny, Command, Path], None]] = {
    "train-mtp-in-slime.md": train,
    "publish-a-head.md": publish,
    "low-accept-rate.md": debug,
    "add-a-family.md": lambda *_: None,
}


@pytest.mark.parametrize("page", WORLDS)
def test_a_page_is_followed(hub: HubServer, tiny: Tiny, command: Command, here: Path, page: str) -> None:
    WORLDS[page](hub, tiny, command, here)
    follow(page, command)


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (DOCS / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (DOCS / link).exists()]
    assert links == []
    own = [name for name in QUOTED.findall(text) if name.startswith(("ckpt_tools/", "scripts/", "tests/", "schemas/"))]
    assert [name for name in own if not name.isupper() and "NAME" not in name and not (ROOT / name).exists()] == []


def test_the_names_of_the_family_page() -> None:
    """What it tells to call is there."""
    from ckpt_tools.families import FAMILIES
    from ckpt_tools.families.base import Family, Variant
    from ckpt_tools.families.config import Fields

    text = (DOCS / "add-a-family.md").read_text()
    for name in ("size", "number", "flag", "first"):
        assert hasattr(Fields, name) and name in text
    assert Variant.__name__ in text and Family.__name__ in text and "FAMILIES" in text and FAMILIES
    assert {"dims", "table"} <= set(Family.__dataclass_fields__)
