"""Configs that lack a field, hold what cannot be, or name an unknown family: named, never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkpoints import changed_config
from tests.conftest import Command, Tiny
from tests.convert.refusal import check_refusal

COMMON = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
NEEDED = {
    "llama": COMMON,
    "qwen2": (*COMMON, "rope_theta"),
    "qwen3": (*COMMON, "rope_theta", "head_dim", "attention_bias"),
    "mimo": (*COMMON, "rope_theta"),
}
EVERY = [(family, field) for family, fields in NEEDED.items() for field in fields]


@pytest.mark.parametrize("absent", [True, False], ids=["absent", "null"])
@pytest.mark.parametrize(("family", "field"), EVERY)
def test_a_field_that_is_not_there_is_named_and_never_guessed(
    family: str, field: str, absent: bool, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source, target = tiny(family), tmp_path / "out"
    with changed_config(source) as config:
        del config[field]
        if not absent:
            config[field] = None
    ran = command("convert", source, target, "--json", code=1)
    check_refusal(ran, "config-field-missing", target)
    assert f"config.json has no {field}" in [finding["what"] for finding in ran.findings]
    assert command("megatron-args", source / "config.json", "--json", code=1).codes == ran.codes


@pytest.mark.parametrize("family", NEEDED)
def test_every_missing_field_is_named_at_once(family: str, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny(family)
    (source / "config.json").write_text(json.dumps({"model_type": family}))
    ran = command("convert", source, tmp_path / "out", "--json", code=1)
    assert {finding["what"] for finding in ran.findings} >= {f"config.json has no {field}" for field in NEEDED[family]}


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, [64]])
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_size_that_cannot_be(field: str, value: object, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source, target = tiny("qwen3"), tmp_path / "out"
    with changed_config(source) as config:
        config[field] = value
    ran = command("convert", source, target, "--json", code=1)
    check_refusal(ran, "config-value", target)
    assert any(field in finding["what"] and finding["actual"] == repr(value) for finding in ran.findings)


@pytest.mark.parametrize("words", [["convert"], ["inspect"], ["megatron-args"]])
def test_an_unknown_family_is_named_before_any_tensor_is_read(
    words: list[str], tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """The weights are rubbish, and nobody gets far enough to notice (THUDM/slime#1496)."""
    source = tiny("llama")
    with changed_config(source) as config:
        config["model_type"] = "toy_unknown"
    if words != ["inspect"]:
        (source / "model.safetensors").write_bytes(b"rubbish")
    target = tmp_path / "out"
    ran = command(*words, source, *([target] if words == ["convert"] else []), "--json", code=1)
    assert ran.codes == ["family-unsupported"]
    finding = ran.findings[0]
    assert finding["actual"] == "toy_unknown"
    assert all(name in finding["expected"].split(", ") for name in ("llama", "qwen2", "qwen3", "mimo"))
    check_refusal(ran, "family-unsupported", target)
    if words == ["inspect"]:
        assert ran.result["tensors"] == 21


@pytest.mark.parametrize("tp", [3, 7])
def test_a_tensor_parallel_size_that_does_not_divide(
    tp: int, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    check_refusal(
        command("convert", shared_tiny("llama"), target, "--tp", tp, "--json", code=2), "tp-not-divisible", target
    )
