"""Identity of weights: equal for the same model however it is stored, different as soon as it is another one.

The definition of docs/identity.md is computed here by hand, without ckpt_tools.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckpt_tools.drafts.identity import (
    identify,
    mismatches,
    read_range,
    sample_ranges,
)
from ckpt_tools.engine.moves import Located, box_moves
from ckpt_tools.engine.view import View, handles_for
from ckpt_tools.model import open_model
from ckpt_tools.stores.base import Chunk, Tensor
from tests.checkpoints import changed, changed_config, hf_tensors, write_index
from tests.conftest import Command, Tiny

from .identities import sha


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
