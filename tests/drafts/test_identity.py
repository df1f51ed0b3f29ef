"""Identity: equal for the same model however it is stored, different as soon as it is another one.

The worked examples of docs/identity.md are computed here from literal documents, without ckpt_tools.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckpt_tools.drafts.identity import (
    Identity,
    arch_fields,
    arch_hash,
    identify,
    mismatches,
    read_range,
    sample_ranges,
)
from ckpt_tools.drafts.tokenizer import read_tokenizer
from ckpt_tools.engine.moves import Located, box_moves
from ckpt_tools.engine.view import View, handles_for
from ckpt_tools.errors import CkptError
from ckpt_tools.families import FAMILIES, family_of
from ckpt_tools.families.config import Fields
from ckpt_tools.families.dims import Dims
from ckpt_tools.model import open_model
from ckpt_tools.stores.base import Chunk, Tensor
from tests.checkpoints import changed, changed_config, hf_tensors, write_index
from tests.conftest import Command, Tiny
from tests.golden import golden

DOCS = Path(__file__).resolve().parents[2] / "docs" / "identity.md"
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


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# --- architecture


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


# --- tokenizer


TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "added_tokens": [{"id": 3, "content": "<end>", "special": True}],
}
TOKENIZER_DOCUMENT = '{"added":[3],"merges":[["a","b"]],"scores":[],"vocab":[[0,"a"],[1,"b"],[2,"ab"],[3,"<end>"]]}'


def fast(folder: Path, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | changes))
    found = read_tokenizer(folder)
    assert found is not None
    return found.hash


def test_the_worked_example_of_the_tokenizer(tmp_path: Path) -> None:
    assert fast(tmp_path) == "tokens-1:" + sha(TOKENIZER_DOCUMENT)
    assert TOKENIZER_DOCUMENT in DOCS.read_text() and sha(TOKENIZER_DOCUMENT) in DOCS.read_text()


def test_what_does_not_change_a_tokenizer(tmp_path: Path) -> None:
    """Older merges, added tokens in the vocabulary too, pre-tokenizer settings, order."""
    vocab = {"<end>": 3, "ab": 2, "b": 1, "a": 0}
    model = {"type": "BPE", "vocab": vocab, "merges": ["a b"], "ignore_merges": False}
    assert fast(tmp_path / "new") == fast(tmp_path / "old", model=model, truncation=None)


def test_the_slow_files_are_the_same_tokenizer(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (slow / "merges.txt").write_text("#version: 0.2\na b\n")
    decoder = {"3": {"content": "<end>", "special": True}}
    (slow / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    found = read_tokenizer(slow)
    assert found is not None and found.hash == fast(tmp_path / "fast")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"vocab": {"a": 0, "c": 1, "ab": 2}, "merges": [["a", "b"]]}},
        {"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []}},
        {"added_tokens": [{"id": 3, "content": "<stop>"}]},
        {"added_tokens": []},
    ],
)
def test_another_tokenizer_is_another_hash(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert fast(tmp_path / "a") != fast(tmp_path / "b", **changes)


def message(*fields: tuple[int, bytes | int | float]) -> bytes:
    """A protobuf message: bytes, float32 or a small integer."""
    made = b""
    for number, value in fields:
        if isinstance(value, bytes):
            made += bytes([number << 3 | 2, len(value)]) + value
        elif isinstance(value, float):
            made += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            made += bytes([number << 3, value])
    return made


def test_sentencepiece(tmp_path: Path) -> None:
    pieces = [message((1, b"<unk>"), (2, 0.0), (3, 2)), message((1, "▁a".encode()), (2, -1.5))]
    (tmp_path / "tokenizer.model").write_bytes(
        b"".join(message((1, piece)) for piece in pieces) + message((2, b"spec"))
    )
    found = read_tokenizer(tmp_path)
    assert found is not None and dict(found.tokens) == {0: "<unk>", 1: "▁a"} and found.size == 2
    document = '{"added":[],"merges":[],"scores":[["0",2],["-1.5",1]],"vocab":[[0,"<unk>"],[1,"\\u2581a"]]}'
    assert found.hash == "pieces-1:" + sha(document)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff")
    with pytest.raises(CkptError, match="tokenizer-unreadable"):
        read_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path) is None


# --- weights


def by_hand(tensors: dict[str, torch.Tensor], full: bool = False) -> str:
    """The definition in docs/identity.md, written again from the text."""
    listed = []
    for name in sorted(tensors):
        data = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        ranges = [((len(data) - 4096) * i // 3, 4096) for i in range(4)]
        if full or len(data) <= 16384:
            ranges = [(0, len(data))]
        digest = hashlib.sha256()
        for start, length in ranges:
            digest.update(start.to_bytes(8, "little") + length.to_bytes(8, "little") + data[start : start + length])
        listed.append([name, list(tensors[name].shape), digest.hexdigest()])
    text = json.dumps(listed, separators=(",", ":"))
    return f"weights-{'full' if full else 'sampled'}-1:" + sha(text)


LARGE = {"layers": 2, "hidden": 64, "ffn": 160, "vocab": 200}


@pytest.mark.parametrize("kind", ["sampled", "full"])
def test_the_definition_of_weights(shared_tiny: Tiny, kind: str) -> None:
    """Written by hand over the folder's tensors, MTP layer left out."""
    folder = shared_tiny("mimo", **LARGE)
    body = {n: t for n, t in hf_tensors(folder).items() if not n.startswith("model.mtp_layers.")}
    assert max(t.numel() * t.element_size() for t in body.values()) > 16384
    assert identify(open_model(folder), kind).weights_hash == by_hand(body, full=kind == "full")


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "glm4_moe", "mimo", "deepseek_v3"])
def test_equal_for_the_torch_dist_conversion(shared_tiny: Tiny, command: Command, tmp_path: Path, family: str) -> None:
    folder = shared_tiny(family)
    command("convert", folder, tmp_path / "td")
    for kind in ("sampled", "full"):
        assert identify(open_model(tmp_path / "td"), kind) == identify(open_model(folder), kind)


def test_shards_order_and_labels_do_not_matter(tiny: Tiny) -> None:
    folder = tiny("llama", **LARGE)
    before = identify(open_model(folder), "sampled")
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors, reverse=True)
    (folder / "model.safetensors").unlink()
    for number, some in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in some}, folder / f"part{number}.safetensors")
    write_index(folder, {n: f"part{i}.safetensors" for i, some in enumerate((names[::2], names[1::2])) for n in some})
    with changed_config(folder) as config:
        config["torch_dtype"] = "float32"
    assert identify(open_model(folder), "sampled") == before


def test_a_moved_target_is_seen(tiny: Tiny) -> None:
    """L2: one weight changed by 1e-3; the architecture is the same, the weights are not. A new MTP layer changes nothing."""
    folder = tiny("mimo")
    before = identify(open_model(folder), "sampled")
    with changed(folder / "model.safetensors") as tensors:
        tensors["model.mtp_layers.0.input_proj.weight"] += 1
    assert identify(open_model(folder), "sampled") == before
    with changed(folder / "model.safetensors") as tensors:
        tensors["model.layers.0.self_attn.o_proj.weight"][3, 5] += 1e-3
    after = identify(open_model(folder), "sampled")
    assert [mismatch.field for mismatch in mismatches(before, after)] == ["weights"]


def test_hashes_of_different_definitions_are_not_compared(shared_tiny: Tiny) -> None:
    model = open_model(shared_tiny("llama"))
    assert mismatches(identify(model, "sampled"), identify(model, "full")) == []
    assert mismatches(identify(model), identify(model, "full")) == []


def test_samples_reach_both_ends() -> None:
    for nbytes in (0, 1, 16384, 16385, 10**6, 10**9 + 7):
        ranges = sample_ranges(nbytes)
        assert ranges[0][0] == 0 and ranges[-1][1] == nbytes
        assert all(a <= b for a, b in ranges) and sum(b - a for a, b in ranges) <= 16384


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_any_range_of_a_tensor_in_pieces(tmp_path: Path, columns: int, dtype: str) -> None:
    """A matrix cut into column blocks, as tensor parallelism cuts it, read in the same and in another dtype."""
    whole = torch.arange(12 * 30, dtype=torch.float32).reshape(12, 30)
    blocks = torch.tensor_split(whole, columns, dim=1)
    (tmp_path / "data").write_bytes(b"".join(block.contiguous().numpy().tobytes() for block in blocks))
    chunks, offset, column = [], 0, 0
    for block in blocks:
        chunks.append(Chunk(0, offset, (0, column), tuple(block.shape)))
        offset, column = offset + block.numel() * 4, column + block.shape[1]
    tensor = Tensor("x", dtype, (12, 30), (Chunk(0, 0, (0, 0), (12, 30)),))
    moves = list(box_moves((Located(chunks, "F32"), (0, 0)), (Located(list(tensor.chunks), dtype), (0, 0)), (12, 30)))
    expected = whole.to({"F32": torch.float32, "BF16": torch.bfloat16}[dtype]).reshape(-1).view(torch.uint8)
    data = expected.numpy().tobytes()
    view = View(tensor, moves, handles_for([tmp_path / "data"]))
    rng = random.Random(0)
    for _ in range(60):
        start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        assert read_range(view, start, stop) == data[start:stop], (start, stop)
    view.handles.close()


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
