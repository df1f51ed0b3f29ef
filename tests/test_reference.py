"""docs/commands.md says what the command line says."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from make_reference import OUT, rendered

from ckpt_tools.cli import COMMANDS, cli
from ckpt_tools.cli.help import DANGEROUS, GROUPS, OPTIONS, TALKING, options_by_heading, sections
from tests.conftest import Command

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_reference_is_up_to_date() -> None:
    """If this fails, run scripts/make_reference.py."""
    assert OUT.read_text(encoding="utf-8") == rendered()


def test_every_command_stands_under_one_heading(command: Command) -> None:
    found = sections(COMMANDS)
    assert sorted(name for names in found.values() for name in names) == sorted(COMMANDS)
    shown = command("--help").out
    assert [line.rstrip(":") for line in shown.splitlines() if line.rstrip(":") in GROUPS] == list(GROUPS)
    assert all(f"  {name} " in shown for name in COMMANDS)


def options(name: str) -> dict[str, list[tuple[str, str]]]:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return options_by_heading(found, click.Context(found, help_option_names=["-h", "--help"]))


def test_dangerous_options_stand_by_themselves(command: Command) -> None:
    shown = command("export-draft", "--help").out
    assert shown.index(OPTIONS + ":") < shown.index("--target REF") < shown.index(DANGEROUS)
    assert shown.index(DANGEROUS) < shown.index("--overwrite") < shown.index(TALKING + ":") < shown.index("--json")
    risky = {
        record[0].split()[0]
        for name in ("convert", "verify-draft", "export-draft")
        for record in options(name)[DANGEROUS]
    }
    assert {"--overwrite", "--rest", "--duplicates", "--allow-vocab-padding", "--verify"} <= risky
    assert "--verify" not in {record[0].split()[0] for record in options("convert")[DANGEROUS]}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "registry"])
def test_every_option_is_explained(name: str) -> None:
    assert [record[0] for records in options(name).values() for record in records if not record[1].strip()] == []


def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What bash is told for the last word, by click's own protocol."""
    monkeypatch.setenv("_CKPT_TOOLS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(("ckpt-tools", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        cli.main([], prog_name="ckpt-tools")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("conv",), ["plain,convert"]),
        (("pre",), ["plain,preflight"]),
        (("serve-args", "x", "--for", "s"), ["plain,sglang", "plain,slime"]),
        (("inspect", "some/pa"), ["file,some/pa"]),
        (("preflight", "--script", "run"), ["file,run"]),
        (("verify-draft", "d", "--stric"), ["plain,--strict-target"]),
        (("registry", "re"), ["plain,remove", "plain,resolve"]),
    ],
)
def test_a_shell_completes(
    words: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(complete(monkeypatch, capsys, *words)) == expected


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_that_a_page_shows_exist_with_their_options(page: Path) -> None:
    for line in shell_lines(page):
        words = line.split()
        found = cli.get_command(click.Context(cli), words[1])
        if found is None:
            assert words[1] in {name for names in GROUPS.values() for name in names}, line
            continue
        if isinstance(found, click.Group):
            found = found.commands[words[2]]
        known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
            "-h",
            "--help",
        }
        unquoted = line.split('"')[0]
        used = {word.partition("=")[0] for word in unquoted.split() if word.startswith("--")}
        assert used <= known, line


def shell_lines(page: Path) -> list[str]:
    """Lines of code blocks that call ckpt-tools, continuations joined."""
    blocks = page.read_text(encoding="utf-8").split("```")[1::2]
    text = "\n".join(block.partition("\n")[2] for block in blocks).replace("\\\n", " ")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line.startswith("ckpt-tools ") and "[OPTIONS]" not in line]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = {part.partition(")")[0] for part in text.split("](")[1:]}
    local = {target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")}
    assert [target for target in local if not (DOCS / target).exists()] == []
