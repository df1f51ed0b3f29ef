"""Files beside the weights: tokenizer, templates, a model's own code. Public reports, each as a test of its whole kind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import changed_config, hf_tensors, iteration
from tests.conftest import Command, Tiny

TOY = "modeling_toy.py"
RAISES = "raise RuntimeError('a conversion never runs this')\n"


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that is neither weights nor index nor our manifest."""
    skipped = ("model.safetensors", "model.safetensors.index.json", "ckpt-tools.json", "config.json")
    found = {
        str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("model-")
    }
    return {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in found.items() if name not in skipped}


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "deepseek_v3"])
@pytest.mark.parametrize("torch_dist", [True, False])
def test_companions_are_copied_as_they_are_and_listed(
    family: str, torch_dist: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Load-and-save drops fields it does not know, and forgets templates (NVIDIA-NeMo/Megatron-Bridge#645)."""
    source = tiny(family, shards=2)
    (source / "special_tokens_map.json").write_text('{"x": 1 }')
    (source / "extra weights.bin").write_bytes(b"weights")
    result, words = source, []
    if torch_dist:
        command("convert", source, tmp_path / "td")
        result, words = tmp_path / "td", ["--hf-config", source]
    ran = command("convert", result, tmp_path / "out", *words)
    there = sums(tmp_path / "out" if torch_dist else iteration(tmp_path / "out") / "hf")
    expected = {name: found for name, found in sums(source).items() if not name.endswith(".bin")}
    assert there == expected
    assert {"tokenizer.json", "tokenizer_config.json", "additional_chat_templates/x.jinja"} < set(there)
    (line,) = [line for line in ran.out.splitlines() if line.startswith("sidecars")]
    assert line.split(maxsplit=1)[1] == ", ".join(sorted(expected))
    assert "not there" not in ran.out
    if torch_dist:
        assert hf_tensors(tmp_path / "out").keys() == hf_tensors(source).keys()


def test_what_is_absent_is_listed_by_a_dry_run_as_well(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3")
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (source / name).unlink()
    for words in (["--dry-run"], []):
        ran = command("convert", source, tmp_path / "td", *words, "--json")
        assert ran.result["absent"] == ["generation_config.json", "special_tokens_map.json", "chat_template.jinja"]
        assert ran.result["sidecars"] == ["additional_chat_templates/x.jinja", "tokenizer_config.json"]
        assert ran.finding("no-tokenizer")["severity"] == "warning"
        assert (tmp_path / "td").exists() == (not words)
    shown = command("convert", source, tmp_path / "td", "--overwrite").out
    assert ["not", "there", "generation_config.json,"] in [line.split()[:3] for line in shown.splitlines()]


@pytest.mark.parametrize("form", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_may_lie_where_older_releases_have_it(
    form: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny("qwen3")
    (source / "chat_template.jinja").unlink()
    (source / form).write_text('{"chat_template": "{{ x }}"}')
    assert command("convert", source, tmp_path / "td", "--json").result["absent"] == ["special_tokens_map.json"]


def toy(folder: Path) -> Path:
    """A model with code of its own: the named module, one that it imports, one that this imports, a package."""
    with changed_config(folder) as config:
        config["auto_map"] = {"AutoConfig": "configuration_toy.ToyConfig", "AutoModelForCausalLM": "modeling_toy.Toy"}
    imports = "from . import plain_toy\nfrom .utils_toy import f\nfrom .parts.layers import g\nimport torch, os.path\n"
    (folder / "configuration_toy.py").write_text(RAISES)
    (folder / TOY).write_text(imports + RAISES)
    (folder / "plain_toy.py").write_text(RAISES)
    (folder / "utils_toy.py").write_text("if True:\n    from .deep_toy import (\n        h,\n    )\n" + RAISES)
    (folder / "deep_toy.py").write_text("from .modeling_toy import Toy\n" + RAISES)
    (folder / "parts").mkdir()
    (folder / "parts" / "layers.py").write_text("from ..utils_toy import f\nfrom .inner import i\n" + RAISES)
    (folder / "parts" / "inner.py").write_text(RAISES)
    return folder


def test_a_models_own_code_travels_and_is_not_run(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """An exported folder must be usable as it is (NVIDIA-NeMo/Megatron-Bridge#917, #2474)."""
    source = toy(tiny("qwen3"))
    command("convert", source, tmp_path / "td")
    assert command("convert", tmp_path / "td", tmp_path / "hf", "--json").codes == []
    for path in source.rglob("*.py"):
        assert (tmp_path / "hf" / path.relative_to(source)).read_bytes() == path.read_bytes()


MISSING: dict[str, tuple[str, str]] = {
    "named": (TOY, f"{TOY} (named by config.json)"),
    "imported": ("utils_toy.py", f"utils_toy.py (imported by {TOY})"),
    "imported by what is imported": ("deep_toy.py", "deep_toy.py (imported by utils_toy.py)"),
    "imported without a module": ("plain_toy.py", f"plain_toy.py (imported by {TOY})"),
    "in a folder": ("parts/inner.py", "parts/inner.py (imported by parts/layers.py)"),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_file_of_the_code_that_is_not_there(case: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """An error where the folder would be served, a warning where Megatron never looks at it."""
    source, (name, told) = toy(tiny("qwen3")), MISSING[case]
    (source / name).unlink()
    ran = command("convert", source, tmp_path / "td", "--json")
    assert (ran.finding("auto-map-missing")["severity"], ran.finding("auto-map-missing")["actual"]) == (
        "warning",
        f"absent: {told}",
    )
    for words in (["--dry-run"], []):
        refused = command("convert", tmp_path / "td", tmp_path / "out", *words, "--json", code=1)
        assert refused.finding("auto-map-missing")["actual"] == f"absent: {told}"
    assert not list(tmp_path.glob("out*"))
    (iteration(tmp_path / "td") / "hf" / name).parent.mkdir(exist_ok=True)
    (iteration(tmp_path / "td") / "hf" / name).write_text("")
    command("convert", tmp_path / "td", tmp_path / "out")


FORMS: dict[str, Callable[[Path], object]] = {
    "a slow and a fast tokenizer": lambda root: (root / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["tokenization_toy.Slow", null]}}'
    ),
    "a pair alone": lambda root: (root / "tokenizer_config.json").write_text(
        '{"auto_map": ["tokenization_toy.Slow", null]}'
    ),
    "a processor": lambda root: (root / "preprocessor_config.json").write_text(
        '{"auto_map": {"AutoImageProcessor": "tokenization_toy.P"}}'
    ),
    "a config inside the config": lambda root: (root / "generation_config.json").write_text(
        '{"inner": {"auto_map": {"AutoConfig": "tokenization_toy.C"}}}'
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_config_may_name_code(form: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3")
    command("convert", source, tmp_path / "td")
    FORMS[form](source)
    words = ["convert", tmp_path / "td", tmp_path / "out", "--hf-config", source]
    assert "tokenization_toy.py" in command(*words, "--json", code=1).finding("auto-map-missing")["actual"]
    (source / "tokenization_toy.py").write_text(RAISES)
    command(*words)
    assert (tmp_path / "out" / "tokenization_toy.py").read_text() == RAISES


@pytest.mark.parametrize(
    "reference", ["../evil.Toy", "/etc/evil.Toy", "sub/../../evil.Toy", "..evil.Toy", "C:\\evil.Toy", "toy", ".Toy", ""]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(
    reference: str, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = tiny("qwen3")
    (source.parent / "evil.py").write_text(RAISES)
    with changed_config(source) as config:
        config["auto_map"] = {"AutoModel": reference}
    found = command("convert", source, tmp_path / "td", "--json", code=1).finding("auto-map-unsafe")
    assert repr(reference) in found["actual"]
    assert not (tmp_path / "td").exists()


def test_an_import_that_leads_out_of_the_folder_is_not_followed(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = toy(tiny("qwen3"))
    (source.parent / "evil.py").write_text(RAISES)
    (source / TOY).write_text("from ..evil import x\n")
    command("convert", source, tmp_path / "td")
    words = ["convert", tmp_path / "td", tmp_path / "out", "--hf-config", source, "--json"]
    assert command(*words, code=1).finding("auto-map-missing")["actual"] == f"absent: ../evil.py (imported by {TOY})"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["def (", "(" * 5000, "x = '\\ud800'\n", "\x00"])
def test_code_that_is_none_is_copied_all_the_same(text: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = toy(tiny("qwen3"))
    (source / TOY).write_text(text)
    command("convert", source, tmp_path / "td")
    command("convert", tmp_path / "td", tmp_path / "out")
    assert (tmp_path / "out" / TOY).read_text() == text


def test_code_of_another_repository_is_not_looked_for(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3")
    with changed_config(source) as config:
        config["auto_map"] = {"AutoModel": "org/name--modeling_toy.Toy"}
    command("convert", source, tmp_path / "td")
    assert command("convert", tmp_path / "td", tmp_path / "out", "--json").codes == []
