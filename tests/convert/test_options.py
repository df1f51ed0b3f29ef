"""What the options of `convert` do and do not touch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_tools.convert import writing as conversion
from ckpt_tools.engine.execute import Timing, execute
from ckpt_tools.engine.program import Program
from tests.checkpoints import assert_same, changed, changed_config, config_of, hf_tensors, iteration, tree
from tests.conftest import Command, Tiny


@pytest.mark.parametrize("direction", ["torch-dist", "hf"])
def test_a_dry_run_writes_nothing_and_knows_everything(
    direction: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source = shared_tiny("mimo", mtp=2, shards=3)
    if direction == "hf":
        command("convert", source, tmp_path / "td")
        source = tmp_path / "td"
    target = tmp_path / "made"
    words = ["convert", source, target / "out", "--max-shard-size", "20KB"]
    before = tree(tmp_path)
    dry = command(*words, "--dry-run", "--json").result
    assert tree(tmp_path) == before
    assert not target.exists()
    real = command(*words, "--json").result
    told = ("tensors", "nbytes", "files", "mtp_written", "padded_vocab_size", "layout", "to", "family")
    assert {key: dry[key] for key in told} == {key: real[key] for key in told}
    assert (dry["dry_run"], dry["timing"], real["dry_run"]) == (True, {}, False)
    root = iteration(target / "out") if direction == "torch-dist" else target / "out"
    ours = [path for path in root.iterdir() if path.name.endswith((".distcp", ".safetensors", ".pt", ".metadata"))]
    ours += [path for path in root.iterdir() if path.name in ("metadata.json", "model.safetensors.index.json")]
    assert sum(path.stat().st_size for path in ours) == real["nbytes"]
    assert len([path for path in ours if path.suffix in (".distcp", ".safetensors")]) == real["files"] > 2


def test_a_dry_run_finds_what_a_run_finds(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo")
    with changed_config(source) as config:
        config["num_nextn_predict_layers"] = 3
    command("convert", source, tmp_path / "out", "--dry-run", code=1)
    command("convert", source, source / "out", "--dry-run", code=2)


@pytest.mark.parametrize("kind", ["hf", "torch-dist"])
def test_a_checkpoint_is_replaced_only_on_request(
    kind: str, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source, other, target = shared_tiny("llama"), shared_tiny("qwen3"), tmp_path / "out"
    command("convert", source, tmp_path / "td")
    command("convert", other, tmp_path / "other-td")
    wanted, there = (tmp_path / "td", tmp_path / "other-td") if kind == "hf" else (source, other)
    command("convert", there, target)
    before = tree(target)
    refused = command("convert", wanted, target, "--json", code=5)
    assert refused.codes == ["output-exists"]
    assert "--overwrite" in refused.findings[0]["fix"]
    assert tree(target) == before
    command("convert", wanted, target, "--overwrite")
    command("convert", wanted, tmp_path / "fresh")
    assert tree(target) == tree(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "other-td", "out", "td"]


@pytest.mark.parametrize("words", [[], ["--overwrite"]])
def test_what_is_no_checkpoint_is_never_replaced(
    words: list[str], shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("also work")
    before = tree(tmp_path)
    for name in ("thesis", "file"):
        ran = command("convert", shared_tiny("llama"), tmp_path / name, *words, "--json", code=5)
        assert ran.codes == ["output-exists"]
        assert "--overwrite" not in ran.findings[0]["fix"]
    assert tree(tmp_path) == before


def test_an_empty_directory_is_as_good_as_none(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    command("convert", shared_tiny("llama"), tmp_path / "out")
    assert (tmp_path / "out" / "release" / ".metadata").is_file()


def test_a_failed_overwrite_leaves_the_old_checkpoint(
    shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("convert", shared_tiny("llama"), tmp_path / "out")
    before = tree(tmp_path)

    def broken(program: Program, root: Path, *rest: object) -> Timing:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(conversion, "execute", broken)
    assert command("convert", shared_tiny("qwen3"), tmp_path / "out", "--overwrite", "--json", code=1).codes == [
        "write-failed"
    ]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("words", [[], ["--dtype", "float32"]])
def test_verify_sees_one_wrong_byte(
    words: list[str], shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(program: Program, root: Path, *rest: object) -> Timing:
        timing = execute(program, root)
        tensor = program.image.tensors["decoder.layers.mlp.linear_fc2.weight"]
        with (root / program.image.files[0][0]).open("r+b") as stream:
            stream.seek(tensor.chunks[1].offset + 100)
            (byte,) = stream.read(1)
            stream.seek(-1, 1)
            stream.write(bytes([byte ^ 1]))
        return timing

    assert command("convert", shared_tiny("llama"), tmp_path / "ok", *words, "--verify", "--json").result["verified"]
    monkeypatch.setattr(conversion, "execute", faulty)
    ran = command("convert", shared_tiny("llama"), tmp_path / "td", *words, "--verify", "--json", code=1)
    assert ran.finding("verify-failed")["actual"] == "model.layers.1.mlp.down_proj.weight differs"
    assert not list(tmp_path.glob("td*"))


def test_the_direction_can_be_asserted(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("llama")
    assert command("convert", source, tmp_path / "x", "--to", "hf", "--json", code=2).codes == ["direction"]
    command("convert", source, tmp_path / "td", "--to", "torch-dist")
    assert command("convert", tmp_path / "td", tmp_path / "x", "--to", "torch-dist", "--json", code=2).codes == [
        "direction"
    ]
    command("convert", tmp_path / "td", tmp_path / "hf", "--to", "hf")
    assert not (tmp_path / "x").exists()


def test_files_beside_the_weights_travel_byte_for_byte(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo")
    (source / "pytorch_model.bin").write_bytes(b"weights in another form")
    (source / "modeling_mimo.py").write_text("raise RuntimeError('never imported')\n")
    result = command("convert", source, tmp_path / "td", "--json").result
    assert "additional_chat_templates/x.jinja" in result["sidecars"]
    assert not [name for name in result["sidecars"] if name.endswith((".bin", ".safetensors"))]
    command("convert", tmp_path / "td", tmp_path / "hf")
    there = {name: data for name, data in tree(source).items() if not name.endswith((".bin", ".safetensors"))}
    assert {name: data for name, data in tree(tmp_path / "hf").items() if ".safetensors" not in name} == there


def test_a_config_without_a_tokenizer_is_said(shared_tiny: Tiny, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("llama")
    (source / "tokenizer.json").unlink()
    ran = command("convert", source, tmp_path / "td", "--json")
    assert ran.finding("no-tokenizer")["severity"] == "warning"


@pytest.mark.parametrize("as_file", [False, True])
def test_the_config_can_come_from_elsewhere(as_file: bool, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """A trained directory carries no config: it is named, as a folder or as the file itself."""
    source = shared_tiny("mimo")
    command("convert", source, tmp_path / "td")
    carried = iteration(tmp_path / "td") / "hf"
    for path in sorted(carried.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    missing = command("convert", tmp_path / "td", tmp_path / "hf", "--json", code=3).finding("config-not-found")
    assert "--hf-config" in missing["fix"]
    ref = source / "config.json" if as_file else source
    ran = command("convert", tmp_path / "td", tmp_path / "hf", "--hf-config", ref, "--json")
    assert ran.codes == (["no-tokenizer"] if as_file else [])
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
    assert config_of(tmp_path / "hf") == config_of(source)


def test_chunks_and_files_are_cut_at_the_limit(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("mimo")
    command("convert", source, tmp_path / "td", "--max-shard-size", "20KB")
    sizes = [path.stat().st_size for path in iteration(tmp_path / "td").glob("*.distcp")]
    assert len(sizes) > 5
    assert max(sizes) <= 20_000


def test_a_tied_copy_that_was_stored_comes_back(shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = shared_tiny("qwen3", tied=True, store_tied_head=True)
    command("convert", source, tmp_path / "td")
    manifest = json.loads((iteration(tmp_path / "td") / "hf" / "ckpt-tools.json").read_text())
    assert manifest["stored_duplicates"] == ["lm_head.weight"]
    plain = shared_tiny("qwen3", tied=True)
    command("convert", plain, tmp_path / "plain")
    command("convert", tmp_path / "plain", tmp_path / "hf")
    assert "lm_head.weight" not in hf_tensors(tmp_path / "hf")
    command("convert", tmp_path / "plain", tmp_path / "hf2", "--hf-config", source)
    assert "lm_head.weight" in hf_tensors(tmp_path / "hf2")


def test_rotary_buffers_are_left_out_with_a_note(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    import torch

    source = tiny("llama")
    original = hf_tensors(source)
    with changed(source / "model.safetensors") as tensors:
        tensors |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    ran = command("convert", source, tmp_path / "td", "--json")
    assert ran.finding("buffers-recomputed")["severity"] == "note"
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), original)
