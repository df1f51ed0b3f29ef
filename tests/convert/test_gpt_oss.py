"""gpt-oss, bfloat16 and mxfp4: names from transformers, values against an independent decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckpt_tools.convert import Options, convert

Tensors = dict[str, torch.Tensor]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bfloat16 folder as transformers writes it."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**SIZES, tie_word_embeddings=False)).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05)
    folder = tmp_path_factory.mktemp("gpt_oss") / "bf16"
    model.save_pretrained(folder)
    return folder


def packed(folder: Path, out: Path) -> Tensors:
    """The mxfp4 form of a folder with random blocks; returns the bfloat16 tensors that it means."""
    tensors, meant = load_file(folder / "model.safetensors"), {}
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(110, 132, (experts, rows, columns // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        pair = torch.stack((E2M1[(blocks % 16).long()], E2M1[(blocks // 16).long()]), -1).flatten(-2)
        values = pair * torch.exp2(scales.float() - 127).unsqueeze(-1)
        meant[name] = values.flatten(-2).bfloat16().transpose(1, 2).contiguous()
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return {name: t for name, t in tensors.items() if not name.endswith(("_blocks", "_scales"))} | meant


def stored(directory: Path, key: str, *shape: int) -> torch.Tensor:
    import torch.distributed.checkpoint as dcp

    tensor = torch.empty(shape, dtype=torch.bfloat16)
    dcp.load({key: tensor}, storage_reader=dcp.FileSystemReader(str(directory / "release")), no_dist=True)
    return tensor


def test_bfloat16_comes_back_bit_by_bit(plain: Path, tmp_path: Path) -> None:
    convert(plain, tmp_path / "td", Options(verify=True))
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True))
    want, got = load_file(plain / "model.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_gate_and_up_lie_apart_in_megatron(plain: Path, tmp_path: Path) -> None:
    convert(plain, tmp_path / "td", Options())
    source = load_file(plain / "model.safetensors")
    rows = source["model.layers.1.mlp.experts.gate_up_proj"].transpose(1, 2)
    fc1 = stored(tmp_path / "td", "decoder.layers.1.mlp.experts.experts.linear_fc1.weight", 3, 64, 64)
    assert torch.equal(fc1, torch.cat((rows[:, 0::2], rows[:, 1::2]), 1))
    bias = source["model.layers.1.mlp.experts.gate_up_proj_bias"]
    got = stored(tmp_path / "td", "decoder.layers.1.mlp.experts.experts.linear_fc1.bias", 3, 64)
    assert torch.equal(got, torch.cat((bias[:, 0::2], bias[:, 1::2]), 1))
    fc2 = stored(tmp_path / "td", "decoder.layers.1.mlp.experts.experts.linear_fc2.weight", 3, 64, 32)
    assert torch.equal(fc2, source["model.layers.1.mlp.experts.down_proj"].transpose(1, 2))
    sinks = stored(tmp_path / "td", "decoder.layers.1.self_attention.core_attention.softmax_offset", 4)
    assert torch.equal(sinks, source["model.layers.1.self_attn.sinks"])


def test_mxfp4_is_decoded_exactly(plain: Path, tmp_path: Path) -> None:
    meant = packed(plain, tmp_path / "mx")
    convert(tmp_path / "mx", tmp_path / "td", Options(verify=True))
    convert(tmp_path / "td", tmp_path / "hf", Options(verify=True))
    got = load_file(tmp_path / "hf" / "model.safetensors")
    assert meant.keys() == got.keys()
    assert all(torch.equal(meant[name], got[name]) for name in meant)
    assert "quantization_config" not in json.loads((tmp_path / "hf" / "config.json").read_text())
