"""Values that are not finite, and tensors of one value, of every dtype, against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.drafts.checks.values import _verdict
from ckpt_tools.drafts.spec import plain
from ckpt_tools.stores.hf_folder import open_folder

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def verdict(folder: Path, values: torch.Tensor, complete: bool = True, name: str = "x.weight") -> str:
    folder.mkdir(exist_ok=True)
    save_file({name: values}, folder / "model.safetensors")
    opened = open_folder(folder)
    return _verdict(plain(name, opened.tensors[name], tuple(opened.files)), complete, False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_that_is_not_finite(tmp_path: Path, dtype: torch.dtype) -> None:
    """Alone among values as large as the dtype has them, at any place."""
    largest = torch.finfo(dtype).max
    values = torch.tensor([[largest, -largest, 1, -1, torch.finfo(dtype).tiny, 0]], dtype=dtype)
    assert bool(torch.isfinite(values).all()) and verdict(tmp_path, values) == ""
    for place in range(values.numel()):
        for odd in (float("nan"), -float("nan"), float("inf"), -float("inf")):
            broken = values.clone()
            broken[0, place] = odd
            assert verdict(tmp_path, broken) == "tensor-not-finite"


def test_random_bits(tmp_path: Path) -> None:
    """Of a hundred words of 16 bits about one in two holds a number that is none."""
    found = []
    for seed in range(60):
        bits = torch.randint(-(2**15), 2**15, (2, 50), generator=torch.Generator().manual_seed(seed)).to(torch.int16)
        for dtype in (torch.bfloat16, torch.float16):
            values = bits.view(dtype)
            found.append(bool(torch.isfinite(values).all()))
            assert (verdict(tmp_path, values) == "") == found[-1]
    assert True in found and False in found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("complete", [True, False])
def test_tensors_of_one_value(tmp_path: Path, dtype: torch.dtype, complete: bool) -> None:
    for value, code in ((0.0, "tensor-zero"), (-0.0, "tensor-zero"), (0.5, "tensor-constant")):
        values = torch.full((40, 50), value, dtype=dtype)
        assert verdict(tmp_path, values, complete) == code
        assert verdict(tmp_path, values[0].clone(), complete) == code.replace("tensor-c", "norm-c")
        assert verdict(tmp_path, values, complete, "x.bias") == ""
        values[-1, -1] = 3
        assert verdict(tmp_path, values, complete) == ""
    assert verdict(tmp_path, torch.zeros(1, dtype=dtype), complete) == ""


def test_a_value_between_the_samples(tmp_path: Path) -> None:
    """Where samples say that it is constant, all of it is looked at."""
    values = torch.ones(1 << 20, 1)
    values[(1 << 19) + 12345] = 2
    assert verdict(tmp_path, values, complete=False) == ""
