"""What comes from the original and what from training; tensors that share memory. Public reports, each as a whole kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import execute
from tests.checkpoints import (
    INDEX,
    Tensors,
    assert_same,
    changed,
    hf_tensors,
    holders,
    iteration,
    megatron_tensors,
    tree,
    write_torch_dist,
)
from tests.conftest import Command, Tiny

from .expected_moe import under_one_name
from .test_ranks import ranked

PARTS = ["fc.weight", "model.mtp_layers.", "model.layers.2.", "mtp."]


def filled(folder: Path, value: float) -> Path:
    for path in folder.glob("*.safetensors"):
        with changed(path) as tensors:
            for name in tensors:
                tensors[name] = torch.full_like(tensors[name], value)
    return folder


@pytest.mark.parametrize("family", ["mimo", "deepseek_v3", "qwen3_next", "glm4_moe"])
@pytest.mark.parametrize("stripped", [False, True])
def test_trained_weights_win_over_the_originals(
    family: str, stripped: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """The head equalled the pretrained one after training (NVIDIA/Model-Optimizer#2174)."""
    original = tiny(family, shards=2)
    trained = filled(Path(shutil.copytree(original, tmp_path / "trained")), 3.0)
    command("convert", trained, tmp_path / "td")
    filled(original, 1.0)
    if stripped:  # as a training run saves it
        shutil.rmtree(iteration(tmp_path / "td") / "hf")
    words = ["convert", tmp_path / "td", tmp_path / "hf", "--hf-config", original, "--rest", "carry"]
    ran = command(*words)
    found = hf_tensors(tmp_path / "hf")
    assert found.keys() == hf_tensors(original).keys()
    head = [name for name in found if name.startswith(tuple(PARTS))]
    assert len(head) > 10
    assert [name for name in found if not bool((found[name] == 3.0).all())] == []
    assert "carried" in [line.split()[0] for line in ran.out.splitlines()]
    assert "0 tensors of the original" in ran.out
    assert command(*words, "--overwrite", "--json").result["carried"] == 0


TOWER = ("visual.patch.weight", "visual.blocks.0.weight", "visual.blocks.0.bias", "visual.counts")


def with_tower(folder: Path) -> Tensors:
    """Four tensors that Megatron never holds, of as many dtypes."""
    made = torch.arange(12).reshape(3, 4)
    dtypes = (torch.bfloat16, torch.float32, torch.float16, torch.int64)
    tower = {name: made.to(dtype) for name, dtype in zip(TOWER, dtypes, strict=True)}
    every = hf_tensors(folder)
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    save_file({**every, **tower}, folder / "model.safetensors", metadata={"format": "pt"})
    return {**every, **tower}


@pytest.fixture(params=["mimo", "qwen3_5_text"])
def run(request: pytest.FixtureRequest, tiny: Tiny, tmp_path: Path) -> tuple[Path, Path, Tensors]:
    """(a training run's directory, its original with a tower, the tensors of that): the run knows the text alone."""
    original = tiny(request.param)
    source = tmp_path / "text"
    shutil.copytree(original, source)
    every = with_tower(original)
    convert(source, tmp_path / "td", Options())
    trained = write_torch_dist(tmp_path / "run", under_one_name(megatron_tensors(tmp_path / "td"), 0))
    return trained, original, every


def test_one_worker_and_several_fill_alike(
    run: tuple[Path, Path, Tensors], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parallel converter lacked the step that the single one had (THUDM/slime#2270, #2222)."""
    trained, original, every = run
    words = ["--hf-config", original, "--rest", "carry", "--max-shard-size", "9000"]
    for threads in (1, 4):
        monkeypatch.setattr(execute, "THREADS", threads)
        ran = command("convert", trained, tmp_path / f"threads{threads}", *words, "--json")
        assert ran.result["carried"] == len(TOWER)
    for size in (1, 4):
        ended = ranked("convert", trained, tmp_path / f"ranks{size}", *words, "--json", size=size)
        assert [rank.code for rank in ended] == [0] * size, ended[0]
        assert json.loads(ended[0].out)["result"]["carried"] == len(TOWER)
    first = tree(tmp_path / "threads1")
    for name in ("threads4", "ranks1", "ranks4"):
        assert tree(tmp_path / name) == first
    assert_same(hf_tensors(tmp_path / "threads1"), every)
    files = sorted(path.name for path in (tmp_path / "threads1").glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    assert len(files) > 4
    index = json.loads((tmp_path / "threads1" / INDEX).read_text())
    assert index["weight_map"] == holders(tmp_path / "threads1")
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in every.values())


def test_a_cast_leaves_what_is_carried_alone(run: tuple[Path, Path, Tensors], tmp_path: Path, command: Command) -> None:
    trained, original, every = run
    command("convert", trained, tmp_path / "hf", "--hf-config", original, "--rest", "carry", "--dtype", "float32")
    found = hf_tensors(tmp_path / "hf")
    assert_same({name: found[name] for name in TOWER}, {name: every[name] for name in TOWER})
    assert found["model.norm.weight"].dtype == torch.float32


def test_without_filling_the_absent_tensors_are_named(
    run: tuple[Path, Path, Tensors], tmp_path: Path, command: Command
) -> None:
    trained, original, every = run
    words = ["convert", trained, tmp_path / "hf", "--hf-config", original]
    found = command(*words, "--json", code=1).finding("rest-undecided")
    assert found["what"].startswith("4 tensors")
    assert all(name in found["actual"] for name in TOWER)
    assert not (tmp_path / "hf").exists()
    assert ranked(*words, "--json", size=2)[0].code == 1
    assert not (tmp_path / "hf").exists()
    command(*words, "--rest", "drop")
    assert hf_tensors(tmp_path / "hf").keys() == every.keys() - set(TOWER)


def test_tensors_that_share_memory_are_written_whole(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """ "Some tensors share memory": never a crash, and nobody's file grows (safetensors/safetensors#98, #202)."""
    source = tiny("qwen3")
    with changed(source / "model.safetensors") as tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    command("convert", source, tmp_path / "td")
    stored = megatron_tensors(tmp_path / "td")
    stored["output_layer.weight"] = stored["embedding.word_embeddings.weight"]  # one storage, two names
    name = "decoder.layers.mlp.linear_fc1.weight"
    wide = torch.cat([stored[name], stored[name]], dim=1)
    stored[name] = wide[:, : stored[name].shape[1]]  # half of a larger tensor
    write_torch_dist(tmp_path / "aliased", stored)
    command("convert", tmp_path / "aliased", tmp_path / "hf", "--hf-config", source)
    found = hf_tensors(tmp_path / "hf")
    assert_same(found, hf_tensors(source))
    sizes = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    assert (tmp_path / "hf" / "model.safetensors").stat().st_size - sizes < 8192
    gate = found["model.layers.0.mlp.gate_proj.weight"]
    assert gate.untyped_storage().nbytes() == gate.numel() * gate.element_size()


def test_a_tied_pair_is_written_once(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("qwen3", tied=True)
    command("convert", source, tmp_path / "td")
    write_torch_dist(tmp_path / "torch", megatron_tensors(tmp_path / "td"))
    command("convert", tmp_path / "torch", tmp_path / "hf", "--hf-config", source)
    assert "lm_head.weight" not in hf_tensors(tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))
