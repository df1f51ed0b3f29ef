"""Vocabulary padding and tied embeddings: public reports, each as a test of its whole kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import assert_same, changed, changed_config, config_of, hf_tensors, megatron_tensors
from tests.conftest import Command, Tiny

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("vocab", "divisor", "tp", "padded"),
    [
        (1000, 128, 1, 1024),
        (1000, 128, 2, 1024),
        (1000, 128, 16, 2048),
        (1000, 1, 8, 1000),
        (151936, 128, 1, 151936),
        (151936, 128, 8, 152576),
        (96, 128, 2, 256),
        (96, 1, 2, 96),
    ],
)
def test_the_padded_size_is_megatrons(
    vocab: int, divisor: int, tp: int, padded: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Rows that differ from what the trainer expects; padding taken times TP twice (NVIDIA-NeMo/Megatron-Bridge#5353)."""
    source = shared_tiny("llama", vocab=vocab, hidden=16, heads=16, kv_heads=16, layers=1)
    words = ["--make-vocab-size-divisible-by", divisor, "--tp", tp]
    ran = command("convert", source, tmp_path / "td", *words)
    assert f"vocabulary  {vocab} rows, {padded} padded" in ran.out
    assert command("inspect", tmp_path / "td", "--json").result["padded_vocab_size"] == padded
    found, original = megatron_tensors(tmp_path / "td"), hf_tensors(source)
    for megatron, name in ((EMBEDDING, EMBED), (OUTPUT, HEAD)):
        assert found[megatron].shape == (padded, 16)
        assert torch.equal(found[megatron][:vocab], original[name])
        assert not found[megatron][vocab:].any()
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), original)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_tied_model_shares_its_embedding(family: str, shared_tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """No lm_head is asked for, and none is invented (THUDM/slime#345)."""
    source = shared_tiny(family, tied=True, extra_config={"rope_scaling": None})
    command("convert", source, tmp_path / "td")
    found = megatron_tensors(tmp_path / "td")
    assert OUTPUT not in found
    assert torch.equal(found[EMBEDDING][:40], hf_tensors(source)[EMBED])
    flags = command("megatron-args", tmp_path / "td").out.split()
    assert "--untie-embeddings-and-output-weights" not in flags
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert HEAD not in hf_tensors(tmp_path / "hf")
    assert config_of(tmp_path / "hf")["tie_word_embeddings"] is True


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_the_flag_and_the_tensors_must_agree(
    head: str, tied: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Neither the flag nor the presence of a tensor decides alone (NVIDIA/TensorRT-LLM#3324)."""
    source = tiny("qwen3", tied=False)
    with changed_config(source) as config:
        config["tie_word_embeddings"] = tied
    with changed(source / "model.safetensors") as tensors:
        if head == "absent":
            del tensors[HEAD]
        else:
            tensors[EMBED][7, 7] = 0.25
            tensors[HEAD] = tensors[EMBED].clone()
            tensors[HEAD][7, 7] += 0.5 if head == "different" else 0.0
    wrong = {(False, "absent"): "lm-head-missing", (True, "different"): "tie-conflict"}.get((tied, head))
    convert = command("convert", source, tmp_path / "td", "--json", code=1 if wrong else 0)
    inspect = command("inspect", source, "--check", "--json", code=1 if wrong else 0)
    if wrong:
        assert convert.codes == [wrong]
        assert inspect.codes == [wrong]
        assert not (tmp_path / "td").exists()
        if wrong == "tie-conflict":
            assert convert.finding(wrong)["actual"] == "max |difference| 0.5"
        return
    if (tied, head) == (True, "equal"):
        assert convert.finding("tied-copy")["severity"] == "note"
    assert (OUTPUT in megatron_tensors(tmp_path / "td")) is not tied
    command("convert", tmp_path / "td", tmp_path / "hf")
    assert_same(hf_tensors(tmp_path / "hf"), hf_tensors(source))


@pytest.mark.parametrize(
    ("top", "nested"), [(None, False), (False, None), (False, False), (True, False), (False, True)]
)
def test_the_flag_is_read_at_both_levels(
    top: bool | None, nested: bool | None, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """The level that states the flag counts, not a default at the other one (THUDM/slime#1730)."""
    source = tiny("qwen3", tied=False)
    with changed_config(source) as config:
        del config["tie_word_embeddings"]
        config["text_config"] = {}
        if top is not None:
            config["tie_word_embeddings"] = top
        if nested is not None:
            config["text_config"]["tie_word_embeddings"] = nested
    agree = None in (top, nested) or top == nested
    ran = command("inspect", source, "--json", code=0 if agree else 1)
    if agree:
        level = "text_config" if nested is not None else "top level"
        assert (ran.result["dims"]["tied"], ran.result["tied_from"]) == (False, level)
        assert f"no ({level})" in command("inspect", source).out
        command("convert", source, tmp_path / "td", "--verify")
    else:
        assert f"text_config: {nested}, top level: {top}" in ran.finding("config-conflict")["actual"]
        command("convert", source, tmp_path / "td", code=1)
        assert not (tmp_path / "td").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_the_flag_of_a_wrapped_model_stands_with_the_language_model(
    tied: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """A multimodal config nests it; what a library fills in at the top does not count."""
    source = tiny("qwen3_5", tied=tied)
    with changed_config(source) as config:
        config.pop("tie_word_embeddings", None)
        config["text_config"]["tie_word_embeddings"] = tied
    result = command("inspect", source, "--json").result
    assert (result["dims"]["tied"], result["tied_from"]) == (tied, "text_config")
    command("convert", source, tmp_path / "td", "--rest", "drop")
    assert (OUTPUT in megatron_tensors(tmp_path / "td")) is not tied
    with changed_config(source) as config:
        config["tie_word_embeddings"] = not tied
    assert "config-conflict" in command("inspect", source, "--json", code=1).codes
