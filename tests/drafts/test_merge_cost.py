"""What extract and merge read and write, counted by the kernel: the head and the shards that change, never the model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from make_sparse import write_shard

from ckpt_tools.convert import Options as ConvertOptions
from ckpt_tools.convert import convert
from ckpt_tools.drafts.export import Options
from ckpt_tools.drafts.merge import merge_draft
from ckpt_tools.drafts.mtp import extract_draft
from tests.conftest import Tiny

Shapes = dict[str, tuple[tuple[int, ...], str]]
GB = 1_000_000_000
H, F, Q, KV, VOCAB, LAYERS = 4096, 11008, 4096, 1024, 151680, 50


@dataclass
class Traffic:
    """Bytes that this process read from and wrote to files, page cache included."""

    read: int = 0
    written: int = 0


def counters() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


@contextmanager
def counted() -> Iterator[Traffic]:
    found, before = Traffic(), counters()
    yield found
    after = counters()
    found.read, found.written = (after[name] - before[name] for name in ("rchar", "wchar"))


def layer(at: str) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (Q, H),
        "self_attn.k_proj.weight": (KV, H),
        "self_attn.v_proj.weight": (KV, H),
        "self_attn.o_proj.weight": (H, Q),
        "self_attn.q_proj.bias": (Q,),
        "self_attn.k_proj.bias": (KV,),
        "self_attn.v_proj.bias": (KV,),
        "mlp.gate_proj.weight": (F, H),
        "mlp.up_proj.weight": (F, H),
        "mlp.down_proj.weight": (H, F),
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
    }
    return {at + name: (shape, "BF16") for name, shape in shapes.items()}


def large_mimo(folder: Path) -> tuple[Path, str]:
    """MiMo with 50 layers, 22 GB of holes: a shard per five layers, the MTP layer in one of its own; and that one's name."""
    frame = {f"{name}_layernorm.weight": (H,) for name in ("token", "hidden", "final")} | {
        "input_proj.weight": (H, 2 * H)
    }
    mtp = {f"model.mtp_layers.0.{name}": (shape, "BF16") for name, shape in frame.items()}
    outer: Shapes = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ((VOCAB, H), "BF16"))
    shards: list[Shapes] = [outer | {"model.norm.weight": ((H,), "BF16")}, mtp | layer("model.mtp_layers.0.")]
    shards += [
        {n: t for i in range(first, first + 5) for n, t in layer(f"model.layers.{i}.").items()}
        for first in range(0, LAYERS, 5)
    ]
    folder.mkdir()
    where = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / file, list(tensors), tensors)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    config = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "hidden_size": H, "intermediate_size": F}
    config |= {"num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 640000}
    config |= {"tie_word_embeddings": False, "attention_bias": True, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, where["model.mtp_layers.0.input_proj.weight"]


def test_merging_into_20_gigabytes_takes_seconds(tmp_path: Path) -> None:
    model, changing = large_mimo(tmp_path / "model")
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    changed = (model / changing).stat().st_size
    assert size > 20 * GB
    extract_draft(model, tmp_path / "head", Options())
    began = time.monotonic()
    with counted() as traffic:
        result = merge_draft(model, tmp_path / "head", tmp_path / "merged", Options()).result
    assert time.monotonic() - began < 30
    assert (result.files, result.unchanged) == (1, 11)
    assert 0 < traffic.written <= 1.1 * changed < size / 20
    assert sum(path.stat().st_size for path in (tmp_path / "merged").glob("*.safetensors")) == size


@pytest.mark.parametrize("family", ["mimo", "glm4_moe"])
@pytest.mark.parametrize("megatron", [False, True])
def test_extracting_reads_the_head_only(family: str, megatron: bool, shared_tiny: Tiny, tmp_path: Path) -> None:
    """Once to copy it, and the copy once more for its hash; MiMo's joint projection too, whose halves change places."""
    source = shared_tiny(family, layers=6, hidden=256, ffn=768, vocab=512, shards=4, experts=4)
    if megatron:
        convert(source, tmp_path / "megatron", ConvertOptions())
        source = tmp_path / "megatron"
    extract_draft(source, tmp_path / "warm", Options())  # imports are files as well
    with counted() as traffic:
        extract_draft(source, tmp_path / "head", Options())
    head = (tmp_path / "head" / "model.safetensors").stat().st_size
    body = sum(path.stat().st_size for path in source.rglob("*") if path.suffix in (".safetensors", ".distcp"))
    hashed = sum(path.stat().st_size for path in (tmp_path / "head").iterdir())
    described = sum(path.stat().st_size for path in source.rglob("*") if path.name in (".metadata", "tokenizer.json"))
    assert 0 < traffic.read - hashed - described <= 1.05 * head < body / 4
    assert traffic.written <= 1.05 * head
