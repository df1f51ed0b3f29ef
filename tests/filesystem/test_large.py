"""A frame beyond 4 GiB, a zip64 archive as torch writes it, sparse: bytes lie where torch finds them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from ckpt_tools.stores.torch_dist.reader import METADATA, locate, open_checkpoint
from tests.checkpoints import write_torch_dist

GIB = 1 << 30
WIDTH = 1 << 15
ROWS = (5 * GIB) // (2 * WIDTH)
MARK = torch.tensor([1.5, -2.25, 3.0, 7.0], dtype=torch.bfloat16)


def put(path: Path, offset: int) -> None:
    """Four known elements at a byte of a file."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(MARK.view(torch.uint8).numpy().tobytes())


def torch_frame(path: Path, shape: tuple[int, ...]) -> None:
    """What torch.save writes of a tensor, its bytes left out as a hole: beyond 4 GiB a zip64 archive."""
    with torch.serialization.skip_data():
        torch.save(torch.empty(shape, dtype=torch.bfloat16), path)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A torch-dist directory of torch's own with one frame of 5 GiB."""
    folder = write_torch_dist(tmp_path / "release", {"big": torch.zeros(2, 2, dtype=torch.bfloat16)})
    metadata = FileSystemReader(folder).read_metadata()
    item: Any = metadata.state_dict_metadata["big"]
    (place,) = metadata.storage_data.values()
    torch_frame(folder / place.relative_path, (ROWS, WIDTH))
    item.size = item.chunks[0].sizes = torch.Size((ROWS, WIDTH))
    place.length = (folder / place.relative_path).stat().st_size
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    yield folder


def test_a_zip64_frame_that_torch_wrote(large: Path) -> None:
    """Our address of an element is the one at which torch finds it."""
    checkpoint = open_checkpoint(large)
    assert checkpoint.report.errors == []
    locate(checkpoint, {"big"})
    tensor = checkpoint.tensors["big"]
    (chunk,) = tensor.chunks
    path = checkpoint.files[chunk.file]
    assert path.stat().st_size > 5 * GIB and path.stat().st_blocks * 512 < 1 << 20
    for row in (0, ROWS // 2, ROWS - 1):
        put(path, chunk.offset + row * WIDTH * 2 + 100)
        found = torch.load(path, mmap=True, weights_only=True)
        assert torch.equal(found[row, 50:54], MARK)
        del found
