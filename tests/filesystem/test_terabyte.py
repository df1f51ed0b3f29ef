"""A model of a terabyte whose headers are real and whose bytes are holes: planned, begun, continued, its head taken out."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import warnings
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from make_sparse import MAX_SHARD, deal, nbytes, write_shard
from make_sparse_megatron import make_sparse_megatron
from safetensors import safe_open
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from ckpt_tools.stores.base import Chunk, Source
from ckpt_tools.stores.hf_folder import open_folder
from ckpt_tools.stores.torch_dist.reader import locate, open_checkpoint
from tests.checkpoints import config_of, write_index
from tests.conftest import Command, Tiny

TERABYTE, GIB = 10**12, 1 << 30
MEMORY = 300 * 10**6  # bytes of anonymous memory that a run may take
LAYERS, H, F, V, HEADS, GROUPS, DIM = 1024, 4096, 36864, 4096, 32, 4, 128
MARK = torch.tensor([1.5, -2.25, 3.0, 7.0], dtype=torch.bfloat16)
SIZES = {"num_hidden_layers": LAYERS, "hidden_size": H, "intermediate_size": F, "vocab_size": V, "head_dim": DIM}
SIZES |= {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "num_nextn_predict_layers": 1}


def shape_of(name: str) -> tuple[int, ...]:
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return (V, H)
    for ending, shape in {
        "gate_proj": (F, H),
        "up_proj": (F, H),
        "down_proj": (H, F),
        "input_proj": (H, 2 * H),
    }.items():
        if name.endswith(f"{ending}.weight"):
            return shape
    if name.endswith(("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias")):
        return (GROUPS * DIM, H)[: 1 + name.endswith("weight")]
    return (H, H) if name.endswith("_proj.weight") else (H,)


@pytest.fixture(scope="module")
def huge(shared_tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face folder."""
    small = shared_tiny("mimo", layers=1, mtp=1)
    folder = tmp_path_factory.mktemp("terabyte") / "hf"
    shutil.copytree(small, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = {key: value for key, value in config_of(small).items() if key != "auto_map"}  # its code is not there
    (folder / "config.json").write_text(json.dumps(config | SIZES))
    with safe_open(small / "model.safetensors", "pt") as stream:
        names = list(stream.keys())
    body = ".layers.0."
    every = [name for name in names if ".mtp_layers." in name or body not in name]
    every += [name.replace(body, f".layers.{i}.") for name in names if name not in every for i in range(LAYERS)]
    tensors = {name: (shape_of(name), "BF16") for name in every}
    assert sum(nbytes(*tensor) for tensor in tensors.values()) > TERABYTE
    where: dict[str, str] = {}
    shards = deal(tensors, MAX_SHARD)
    for number, held in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / file, held, tensors)
        where |= dict.fromkeys(held, file)
    write_index(folder, where, sum(nbytes(*tensor) for tensor in tensors.values()))
    return folder


@pytest.fixture(scope="module")
def huge_megatron(huge: Path) -> Path:
    """The torch-dist directory that `convert` would write of it."""
    return make_sparse_megatron(huge, huge.parent / "td", layout="per-layer")


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def lean(*words: object) -> dict[str, Any]:
    """`ckpt-tools WORDS --json` in a process that may not take more than MEMORY; its envelope."""
    line = [sys.executable, "-m", "ckpt_tools", *map(str, words), "--json"]
    done = subprocess.run(line, preexec_fn=limited, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def put(source: Source, chunk: Chunk, places: int = 1) -> None:
    """Known elements at the beginning of a chunk, or at as many places spread over it."""
    step = max(64, prod(chunk.shape) * 2 // places // 64 * 64)
    with source.files[chunk.file].open("r+b") as stream:
        for place in range(0, min(places * step, prod(chunk.shape) * 2), step):
            stream.seek(chunk.offset + place)
            stream.write(MARK.view(torch.uint8).numpy().tobytes())


def test_it_is_planned_and_refused_for_want_of_room(huge: Path, tmp_path: Path) -> None:
    planned = lean("convert", huge, tmp_path / "td", "--dry-run")
    assert planned["ok"] is True and planned["result"]["nbytes"] > TERABYTE
    assert list(tmp_path.iterdir()) == []
    if shutil.disk_usage(tmp_path).free > TERABYTE:
        return
    refused = lean("convert", huge, tmp_path / "td")
    assert [finding["code"] for finding in refused["findings"] if finding["severity"] == "error"] == ["disk-full"]
    assert list(tmp_path.iterdir()) == []


RUN = """
import sys
from pathlib import Path
from ckpt_tools.convert import Options, convert
from ckpt_tools.engine import output

output.check_space = lambda target, nbytes: None
source, target, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seen = []

def progress(nbytes):
    seen.append(nbytes)
    if sum(seen[1:]) > limit:
        raise KeyboardInterrupt

try:
    convert(source, target, Options(), lambda total: progress)
except KeyboardInterrupt:
    print(seen[0], sum(seen[1:]))
"""


def test_it_is_begun_and_continued_in_little_memory(huge: Path, tmp_path: Path) -> None:
    """The first number is what was there already, the second what this run wrote before it was interrupted."""

    def run() -> list[int]:
        line = [sys.executable, "-c", RUN, str(huge), str(tmp_path / "td"), str(GIB // 2)]
        done = subprocess.run(line, preexec_fn=limited, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return list(map(int, done.stdout.split()))

    (none, first), (there, second) = run(), run()
    assert none == 0 and first > GIB // 2 and second > GIB // 2
    assert there >= first
    partial = tmp_path / "td.partial"
    files = [path.stat() for path in partial.rglob("*.distcp")]
    assert sum(file.st_size for file in files) > TERABYTE
    assert sum(file.st_blocks * 512 for file in files) < 4 * GIB
    assert [path.name for path in tmp_path.iterdir()] == ["td.partial"]
    shutil.rmtree(partial)


def test_safetensors_finds_a_tensor_beyond_4_gib_where_we_do(huge: Path) -> None:
    folder = open_folder(huge)
    far = [tensor for tensor in folder.tensors.values() if tensor.chunks[0].offset > 4 * GIB][::97]
    assert len(far) > 5
    for tensor in far:
        put(folder, tensor.chunks[0])
        with safe_open(folder.files[tensor.chunks[0].file], "pt") as stream:
            part = stream.get_slice(tensor.name)
            row = part[:4] if len(tensor.shape) == 1 else part[:1, :4][0]
        assert torch.equal(row, MARK), tensor.name


def test_torch_finds_a_tensor_beyond_4_gib_where_we_do(huge_megatron: Path) -> None:
    checkpoint = open_checkpoint(huge_megatron)
    locate(checkpoint, checkpoint.model_keys)
    far = [t for t in checkpoint.tensors.values() if t.chunks[0].offset > 4 * GIB and t.nbytes < GIB // 8][::29]
    assert len(far) > 5
    for tensor in far:
        put(checkpoint, tensor.chunks[0])
        state = {tensor.name: torch.ones(tensor.shape, dtype=torch.bfloat16)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(dict[str, Any](state), storage_reader=FileSystemReader(checkpoint.root), no_dist=True)
        assert torch.equal(state[tensor.name].flatten()[:4], MARK), tensor.name
        assert not state[tensor.name].flatten()[4:].any()


@pytest.mark.slow
def test_it_is_planned_back_and_its_head_taken_out(huge_megatron: Path, tmp_path: Path) -> None:
    planned = lean("convert", huge_megatron, tmp_path / "hf", "--dry-run")
    assert planned["ok"] is True and planned["result"]["nbytes"] > TERABYTE
    checkpoint = open_checkpoint(huge_megatron)
    locate(checkpoint, {name for name in checkpoint.model_keys if name.startswith("mtp.")})
    for tensor in checkpoint.tensors.values():  # a head with a tensor of zeros alone is refused
        for chunk in tensor.chunks:
            put(checkpoint, chunk, places=200)
    taken = lean("extract-draft", huge_megatron, tmp_path / "head")
    assert taken["ok"] is True, taken["findings"]
    size = sum(path.stat().st_size for path in (tmp_path / "head").glob("*.safetensors"))
    assert size < 2 * GIB
    (file,) = (tmp_path / "head").glob("*.safetensors")
    with safe_open(file, "pt") as stream:
        names = list(stream.keys())
        assert len(names) >= 12
        for name in (name for name in names if ".mtp_layers." in name):
            assert MARK[0] in stream.get_slice(name)[:4096], name
    shutil.rmtree(tmp_path / "head")


def test_inspect_says_what_it_is(huge: Path, huge_megatron: Path, command: Command) -> None:
    for place in (huge, huge_megatron):
        found = json.loads(command("inspect", place, "--json").out)["result"]
        assert found["family"] == "mimo"
