"""Identity of an architecture: equal for the same model however it is stored, different as soon as it is another one.

The worked example of docs/identity.md is computed here from a literal document, without ckpt_tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.drafts.identity import (
    Identity,
    arch_fields,
    arch_hash,
    identify,
    mismatches,
)
from ckpt_tools.errors import CkptError
from ckpt_tools.families import FAMILIES, family_of
from ckpt_tools.families.config import Fields
from ckpt_tools.families.dims import Dims
from ckpt_tools.model import open_model
from tests.conftest import Command, Tiny
from tests.golden import golden

from .identities import DOCS, sha

ASSETS = Path(__file__).resolve().parents[1] / "assets"
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def of_config(config: dict[str, Any]) -> Identity:
    fields = Fields(config, "config.json")
    family = family_of(fields)
    arch = arch_fields(family, family.dims(fields))
    fields.done()
    return Identity(arch=arch, arch_hash=arch_hash(arch))


ARCH_DOCUMENT = (
    '{"family":"llama","head_dim":64,"hidden_size":576,"intermediate_size":1536,"num_attention_heads":9,'
    '"num_hidden_layers":30,"num_key_value_heads":3,"rms_norm_eps":"9.99999975e-06","rope.theta":"100000",'
    '"tied":true,"vocab_size":49152}'
)


def test_the_worked_example_of_arch() -> None:
    assert of_config(SMOLLM2).arch_hash == "arch-1:" + sha(ARCH_DOCUMENT)
    assert ARCH_DOCUMENT in DOCS.read_text() and sha(ARCH_DOCUMENT) in DOCS.read_text()


def shuffled(config: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(config.items()))


def transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """As transformers 5 prints the same config."""
    kept = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")}
    return kept | {
        "dtype": "bfloat16",
        "head_dim": 64,
        "rms_norm_eps": 9.999999747378752e-06,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "transformers_version": "5.24.0",
    }


@pytest.mark.parametrize(
    "same",
    [
        shuffled,
        transformers_5,
        lambda config: config | {"torch_dtype": "float32"},
        lambda config: config | {"head_dim": 64},
        lambda config: config | {"max_position_embeddings": 2048},
        lambda config: config | {"use_cache": False, "anything": 1},
    ],
)
def test_the_way_a_config_is_written_does_not_matter(same: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    assert of_config(same(SMOLLM2)) == of_config(SMOLLM2)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("hidden_size", 1152, "hidden_size"),
        ("vocab_size", 49153, "vocab_size"),
        ("num_key_value_heads", 9, "num_key_value_heads"),
        ("head_dim", 32, "head_dim"),
        ("rope_theta", 100001.0, "rope.theta"),
        ("rms_norm_eps", 1e-06, "rms_norm_eps"),
        ("tie_word_embeddings", False, "tied"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2}, "rope.factor"),
        ("model_type", "qwen2", "family"),
    ],
)
def test_another_architecture_is_another_hash_and_is_named(field: str, value: Any, named: str) -> None:
    other = of_config(SMOLLM2 | {field: value})
    assert other.arch_hash != of_config(SMOLLM2).arch_hash
    assert named in [mismatch.field for mismatch in mismatches(of_config(SMOLLM2), other)]


def test_rope_scaling_is_one_fact_in_both_spellings() -> None:
    old = SMOLLM2 | {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1}}
    new = transformers_5(SMOLLM2)
    new["rope_parameters"] |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    assert of_config(old) == of_config(new)


def test_the_same_architecture_in_two_releases() -> None:
    """DeepSeek-V3 and R1 are one architecture; every other golden list is one of its own, but for the known twins."""
    hashes: dict[str, list[str]] = {}
    known = [
        name for name in golden.names() if golden.load(name).family in {t for f in FAMILIES for t in f.model_types}
    ]
    for name in known:
        try:
            hashes.setdefault(of_config(golden.load(name).config).arch_hash, []).append(name)
        except CkptError:
            assert golden.load(name).config_from == "partial"
    twins = sorted(names for names in hashes.values() if len(names) > 1)
    assert ["DeepSeek-R1", "DeepSeek-V3"] in twins
    assert all(
        set(names) <= {"DeepSeek-R1", "DeepSeek-V3", "GLM-4.5", "GLM-4.6", "Qwen3.5-35B-A3B", "Qwen3.6-35B-A3B"}
        for names in twins
    ), twins


def test_every_field_is_documented() -> None:
    documented = DOCS.read_text()
    for each in Dims.__dataclass_fields__:
        assert f"`{each}`" in documented, each


# --- inspect


def test_inspect_prints_them(shared_tiny: Tiny, command: Command) -> None:
    folder = shared_tiny("mimo")
    expected = identify(open_model(folder), "sampled")
    quick = command("inspect", folder, "--json").result["identity"]
    assert quick == {"arch": expected.arch_hash, "tokenizer": expected.tokenizer_hash}
    assert command("inspect", folder, "--check", "--json").result["identity"] == quick | {
        "weights": expected.weights_hash
    }
    assert re.search(r"^arch hash +arch-1:[0-9a-f]{64}$", command("inspect", folder).out, re.M)


def test_inspect_survives_a_broken_tokenizer(tiny: Tiny, command: Command) -> None:
    folder = tiny("llama")
    (folder / "tokenizer.json").write_text('{"model": 1}')
    assert command("inspect", folder, "--json", code=1).codes == ["tokenizer-unreadable"]


def test_a_head_in_its_targets_form_has_the_targets_architecture() -> None:
    """The MTP head of SmolLM2 in MiMo's form: same sizes as the Llama it came from, with MiMo's biases and own lm_head."""
    config = json.loads((ASSETS / "smollm2-mtp" / "config.json").read_text())
    assert of_config(config).arch == {**of_config(SMOLLM2).arch, "family": "mimo", "tied": False, "qkv_bias": True}
