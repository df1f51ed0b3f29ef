"""Headers against the safetensors library, in both directions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ckpt_tools.stores.dtypes import BY_TORCH, DTYPES
from ckpt_tools.stores.safetensors_header import header_bytes, read_header

from .make import TORCH, random_tensor, raw

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
contents = st.dictionaries(
    names.filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from([dtype.name for dtype in DTYPES]), shapes),
    max_size=6,
)


@given(content=contents)
def test_the_library_reads_what_we_lay_out(content: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    tensors = {name: random_tensor(dtype, shape, n) for n, (name, (dtype, shape)) in enumerate(content.items())}
    header = header_bytes([(name, *entry) for name, entry in content.items()])
    assert len(header) % 8 == 0
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "model.safetensors"
        path.write_bytes(header + b"".join(raw(tensor) for tensor in tensors.values()))
        found = load_file(path)
        with safe_open(path, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert raw(found[name]) == raw(tensor)
        assert read_header(path, 0).keys() == tensors.keys()


@given(content=contents.filter(len))
def test_we_read_what_the_library_writes(content: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    tensors = {name: random_tensor(dtype, shape, n) for n, (name, (dtype, shape)) in enumerate(content.items())}
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "model.safetensors"
        save_file(tensors, path, {"any": "metadata"})
        data = path.read_bytes()
        found = read_header(path, 7)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        (chunk,) = found[name].chunks
        assert (BY_TORCH[str(tensor.dtype).removeprefix("torch.")].name, tuple(tensor.shape)) == content[name]
        assert (found[name].dtype, found[name].shape) == content[name]
        assert (chunk.file, chunk.origin, chunk.shape) == (7, (0,) * tensor.dim(), tuple(tensor.shape))
        assert data[chunk.offset : chunk.offset + found[name].nbytes] == raw(tensor)


def test_every_dtype_has_the_size_torch_gives_it() -> None:
    assert {d.name: d.itemsize for d in DTYPES} == {n: torch.empty(0, dtype=d).element_size() for n, d in TORCH.items()}


@pytest.mark.parametrize("content", [{}, {"scalar": ()}, {"none": (0, 3), "some": (2,), "also none": (3, 0)}])
def test_empty_files_scalars_and_tensors_without_elements(content: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    save_file({name: torch.ones(shape) for name, shape in content.items()}, tmp_path / "m.safetensors")
    assert {name: tensor.shape for name, tensor in read_header(tmp_path / "m.safetensors", 0).items()} == content
