"""What the smaller commands say, and how every command talks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from ckpt_tools.cli import COMMANDS, cli
from ckpt_tools.cli.options import size
from ckpt_tools.cli.output import human_bytes
from tests.checkpoints import changed, changed_config
from tests.conftest import Command, Tiny


def verbs() -> list[tuple[str, ...]]:
    """Every command, and those of a group one by one."""
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        loaded = cli.get_command(click.Context(cli), name)
        inner = loaded.commands if isinstance(loaded, click.Group) else None
        found += [(name, verb) for verb in inner] if inner else [(name,)]
    return found


@pytest.mark.parametrize("words", verbs(), ids=" ".join)
def test_every_command_is_listed_and_helps(words: tuple[str, ...], command: Command) -> None:
    assert words[0] in command("--help").out
    text = command(*words, "--help").out
    assert f"Usage: ckpt-tools {' '.join(words)}" in text
    assert "--json" in text
    assert "--quiet" in text
    found: click.Command | None = cli
    for word in words:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None and all(p.help for p in found.params if isinstance(p, click.Option))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["convert"], "Missing argument 'SRC'"),
        (["convert", "a", "b", "--mtp", "many"], "'many' is neither auto, drop nor a count"),
        (["convert", "a", "b", "--mtp", "-1"], "neither auto, drop nor a count"),
        (["convert", "a", "b", "--max-shard-size", "5 apples"], "is not a size"),
        (["convert", "a", "b", "--tp", "0"], "x>=1"),
        (["convert", "a", "b", "--dtype", "int8"], "int8"),
        (["convert", "a", "b", "--to", "onnx"], "onnx"),
        (["inspect", "--no-such-option", "a"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_usage_errors(words: list[str], said: str, command: Command) -> None:
    plain = command(*words, code=2)
    assert plain.out == ""
    assert said in plain.err
    assert "--help" in plain.err
    ran = command(*words, "--json", code=2)
    assert ran.codes == ["usage"]
    assert said in ran.findings[0]["what"]
    assert ran.envelope["result"] is None
    assert ran.envelope["command"] == words[0]


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("5GB", 5 * 10**9), ("512MiB", 2**29), ("1.5 kB", 1500), ("2tib", 2**41), ("7B", 7)],
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "GB", "5XB", "0.1", "nan", "inf", "5GB5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        size(text)


def test_human_bytes() -> None:
    shown = [human_bytes(n) for n in (0, 999, 1000, 1234567, 99_900_000_000, 5 * 10**15)]
    assert shown == ["0 B", "999 B", "1 kB", "1.23 MB", "99.9 GB", "5000 TB"]


def test_quiet_and_verbose(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Warnings always unless quiet, notes only when asked for; the result is the same."""
    source = shared_tiny("llama", tied=True)  # its rope gives a warning
    command("convert", source, tmp_path / "td")
    texts = {words: command("convert", source, tmp_path / "x", "--dry-run", *words) for words in ((), ("-q",), ("-v",))}
    assert len({re.sub(r"needed, .* free", "", ran.out) for ran in texts.values()}) == 1  # others use the disk as well
    assert "rope-not-expressible" in texts[()].err
    assert texts[("-q",)].err == ""
    noted = shared_tiny("qwen3", tied=True, store_tied_head=True)
    assert "tied-copy" not in command("convert", noted, tmp_path / "silent").err
    assert "tied-copy" in command("convert", noted, tmp_path / "verbose", "-v").err


def test_a_bug_is_called_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_tools.cli.families.matrix", lambda: 1 / 0)
    ran = command("families", "--json", code=1)
    assert ran.codes == ["bug"]
    assert ran.findings[0]["what"].startswith("ZeroDivisionError")
    assert "CKPT_TOOLS_DEBUG" in ran.findings[0]["fix"]


def test_compare_equal_across_formats_and_dtypes(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("mimo", shards=3)
    command("convert", source, tmp_path / "td", "--layout", "per-layer")
    command("convert", source, tmp_path / "wide", "--dtype", "float32")
    ran = command("compare", source, tmp_path / "td", "--json")
    same = ran.result
    assert ran.codes == [], "an equal body says nothing about the head"
    assert (same["equal"], same["equal_values"], same["differences"]) == (43, 0, [])
    assert (same["mtp_tensors"], same["mtp_equal"]) == (16, 16)
    wide = command("compare", tmp_path / "wide", source, "--json").result
    assert (wide["equal"], wide["equal_values"], wide["differences"]) == (0, 43, [])
    assert "equal      43 tensors" in command("compare", source, tmp_path / "td").out


def test_compare_names_what_differs_and_by_how_much(
    shared_tiny: Tiny, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source, other = shared_tiny("llama"), tiny("llama")
    with changed(other / "model.safetensors") as tensors:
        tensors["model.layers.1.self_attn.k_proj.weight"][2, 3] = 1.0
        tensors["model.norm.weight"][0] = float("nan")
    with changed(source / "model.safetensors") as tensors:
        before = float(tensors["model.layers.1.self_attn.k_proj.weight"][2, 3])
    command("convert", other, tmp_path / "td")
    ran = command("compare", source, tmp_path / "td", "--json", code=1)
    found = {difference["name"]: difference for difference in ran.result["differences"]}
    assert found.keys() == {"model.layers.1.self_attn.k_proj.weight", "model.norm.weight"}
    assert found["model.layers.1.self_attn.k_proj.weight"]["max_abs"] == pytest.approx(1 - before)
    assert found["model.norm.weight"]["max_abs"] is None  # nan has no place in JSON
    assert ran.result["equal"] == 19
    text = command("compare", source, tmp_path / "td", code=1).out
    assert "model.layers.1.self_attn.k_proj.weight  differs" in text


def test_compare_shapes_and_missing_tensors(shared_tiny: Tiny, command: Command) -> None:
    ran = command("compare", shared_tiny("mimo", mtp=2), shared_tiny("mimo", ffn=64), "--json", code=1)
    status = {difference["name"]: difference["status"] for difference in ran.result["differences"]}
    assert status["model.mtp_layers.1.input_proj.weight"] == "missing in B"
    assert status["model.layers.0.mlp.up_proj.weight"] == "shape"


def test_compare_sees_a_head_that_did_not_move(tiny: Tiny, command: Command) -> None:
    """The body was trained and the MTP head was not, or an old copy was exported (NVIDIA/Model-Optimizer#2174)."""
    one, two = tiny("mimo"), tiny("mimo")
    with changed(two / "model.safetensors") as tensors:
        tensors["model.layers.0.mlp.up_proj.weight"] += 1
    assert command("compare", one, two, "--json", code=1).finding("mtp-unmoved")["severity"] == "warning"
    with changed(two / "model.safetensors") as tensors:
        tensors["model.mtp_layers.0.input_proj.weight"] += 1
    assert command("compare", one, two, "--json", code=1).codes == []


def test_inspect_folds_layers(shared_tiny: Tiny, command: Command) -> None:
    found = command("inspect", shared_tiny("mimo", layers=12, mtp=2, shards=4), "--json").result
    folded = {entry["name"]: entry["count"] for entry in found["folded"]}
    assert folded["model.layers.{0..11}.mlp.up_proj.weight"] == 12
    assert folded["model.mtp_layers.{0..1}.input_proj.weight"] == 2
    assert sum(folded.values()) == found["tensors"]
    assert (found["format"], found["family"], found["files"]) == ("hf", "mimo", 4)
    assert found["nbytes"] == sum(entry["nbytes"] for entry in found["folded"]) == sum(found["dtypes"].values())


def test_inspect_reports_training_state(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    import torch

    from tests.checkpoints import hf_tensors, megatron_tensors, write_torch_dist

    source = shared_tiny("mimo")
    command("convert", source, tmp_path / "td")
    model = megatron_tensors(tmp_path / "td")
    moments = {f"optimizer.state.exp_avg.{name}": torch.zeros_like(tensor) for name, tensor in model.items()}
    write_torch_dist(tmp_path / "run" / "iter_0000005", {**model, **moments, "rng_state": torch.ones(4)})
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("5")
    ran = command("inspect", tmp_path / "run", "--hf-config", source, "--check", "--json")
    assert (ran.result["tensors"], ran.result["training_state"]) == (len(model), len(model) + 1)
    assert [(f["code"], f["severity"]) for f in ran.findings] == [("training-state", "note")]
    command("convert", tmp_path / "run", tmp_path / "hf", "--hf-config", source)
    assert hf_tensors(tmp_path / "hf").keys() == hf_tensors(source).keys()


def test_inspect_describes_what_no_table_knows(tiny: Tiny, command: Command) -> None:
    source = tiny("llama")
    with changed_config(source) as config:
        config["model_type"] = "unheard_of"
    ran = command("inspect", source, "--json", code=1)
    assert ran.codes == ["family-unsupported"]
    assert (ran.result["family"], ran.result["tensors"], ran.result["dims"]) == ("", 21, {})


def test_megatron_args_from_folder_file_and_torch_dist(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("mimo", mtp=1)
    command("convert", source, tmp_path / "td")
    texts = {command("megatron-args", ref).out for ref in (source, source / "config.json", tmp_path / "td")}
    assert len(texts) == 1
    lines = texts.pop().splitlines()
    assert "--mtp-num-layers 1" in lines
    assert all(line.startswith("--") for line in lines)
    command("convert", source, tmp_path / "bare", "--mtp", "drop")
    assert "--mtp-num-layers" not in command("megatron-args", tmp_path / "bare").out


def test_megatron_args_of_a_rope_that_no_flag_states(shared_tiny: Tiny, command: Command) -> None:
    ran = command("megatron-args", shared_tiny("llama"), "--json", code=1)
    assert "original_max_position_embeddings 64" in ran.finding("rope-not-expressible")["actual"]


def test_families_as_text_markdown_and_json(command: Command) -> None:
    found = command("families", "--json").result["families"]
    names = [family["name"] for family in found]
    assert {"llama", "qwen2", "qwen3", "mimo"} <= set(names)
    rows = command("families", "--markdown").out.splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[2:]] == names
    assert len({row.count("|") for row in rows}) == 1
    text = command("families").out.splitlines()
    assert [line.split()[0] for line in text[2:]] == names
    mimo = next(family for family in found if family["name"] == "mimo")
    assert (mimo["mtp_field"], mimo["draft_class"]) == ("num_nextn_predict_layers", "MiMoMTP")


def test_json_is_one_object(shared_tiny: Tiny, command: Command) -> None:
    assert json.loads(command("inspect", shared_tiny("llama"), "--json").out)["ok"] is True
