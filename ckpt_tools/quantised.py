"""Quantised Hugging Face folders: which scale belongs to which weight, and that it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .engine.moves import Scale
from .mapping.arrangement import Shape
from .reference import BLOCK_SCALE
from .report import Report
from .stores.base import Chunk, Tensor
from .stores.dtypes import BY_NAME, INT4
from .stores.hf_folder import HfFolder

FIELD = "quantization_config"
CHANNEL_SCALE = "_scale"
SUFFIXES = (BLOCK_SCALE, CHANNEL_SCALE)  # of the weight's name: per block (DeepSeek), per output channel (GLM-4.5-FP8)
FLOAT_FORMATS = ("float-quantized", "naive-quantized")  # compressed-tensors: float8 with a scale per channel or tensor
FLOAT8 = ("F8_E4M3", "F8_E5M2")
PACKED, PACKED_SHAPE = "_packed", "_shape"  # of the weight's name
PER_WORD = 8  # four-bit values of an int32
BlockSize = tuple[int, int]
Bands = tuple[tuple[int, int, int], ...]
SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantization_config at either level, or None."""
    nested = config.get("text_config")
    for level in (config, nested if isinstance(nested, Mapping) else {}):
        if isinstance(level.get(FIELD), Mapping):
            found: Mapping[str, Any] = level[FIELD]
            return found
    return None


def read_scales(
    folder: HfFolder,
    config: Mapping[str, Any],
    expected: Mapping[str, Shape],
    parts: Callable[[str], int],
    own: str = "",
) -> dict[str, Scale]:
    """The scale of every quantised weight; findings go to the folder's report.

    `weight_block_size` of the config gives the blocks; a scale of one column is per output channel. `parts` tells into how
    many tensor-parallel parts a tensor was cut before it was quantised, in case its grid starts anew in each. `own` is a
    quant_method that the family's table reads itself.
    """
    scheme = quantisation(config)
    weights = [name for name in expected if name in folder.tensors and folder.tensors[name].dtype in FLOAT8]
    method = scheme.get("quant_method") if scheme else None
    form = scheme.get("format") if scheme else None
    if scheme is not None and own and method == own:
        return {}
    if scheme is not None and method == "compressed-tensors" and form == "pack-quantized":
        return _packed_scales(folder, scheme, expected)
    if scheme is not None and not (method == "fp8" or (method == "compressed-tensors" and form in FLOAT_FORMATS)):
        _unsupported(
            folder.report, str(folder.root), f"quant_method {method!r}" + (f", format {form!r}" if form else "")
        )
        return {}
    stated = _stated_block(scheme or {})
    found: dict[str, Scale] = {}
    for name in weights:
        tensor = folder.tensors.get(name + BLOCK_SCALE) or folder.tensors.get(name + CHANNEL_SCALE)
        if tensor is None:
            folder.report.error(
                "scale-missing",
                f"{name} is float8 and has no scale",
                where=str(folder.root),
                expected=name + BLOCK_SCALE,
                actual="absent",
                fix="fetch the checkpoint again; without its scale the weight has no value",
            )
        elif scale := _scale(folder, name, tensor, stated, parts(name)):
            found[name] = scale
    return found


def _unsupported(report: Report, where: str, what: str) -> None:
    report.error(
        "quantisation-unsupported",
        f"{what} is not read",
        where=where,
        expected="bf16, fp16, fp32, fp8 with block or channel scales, or symmetric int4 in groups",
        actual=what,
        fix="dequantise the model with its own tool first",
    )


def _packed_scales(folder: HfFolder, scheme: Mapping[str, Any], expected: Mapping[str, Shape]) -> dict[str, Scale]:
    """Four-bit weights (Kimi-K2-Thinking): each takes the place of its packed tensor among the folder's tensors."""
    groups = scheme.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    wanted = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    sizes = {each.get("group_size") for each in weights if isinstance(each, Mapping)}
    size = sizes.pop() if len(sizes) == 1 else None
    alike = all(isinstance(each, Mapping) and wanted.items() <= each.items() for each in weights)
    if not (weights and alike and type(size) is int and size > 0 and size % PER_WORD == 0):
        _unsupported(folder.report, str(folder.root), f"pack-quantized weights other than {wanted} in one group_size")
        return {}
    found: dict[str, Scale] = {}
    for name, shape in expected.items():
        packed, scale = (folder.tensors.get(name + suffix) for suffix in (PACKED, CHANNEL_SCALE))
        if packed is None:
            continue
        rows, columns = shape if len(shape) == 2 else (0, 0)
        grid = (rows, columns // size)
        fits = columns % size == 0 and packed.shape == (rows, columns // PER_WORD) and packed.dtype == "I32"
        if not fits or scale is None or scale.shape != grid or scale.dtype not in SCALE_DTYPES:
            folder.report.error(
                "scale-shape",
                f"the packed values of {name} and their scales do not fit it",
                where=str(folder.root),
                expected=f"I32 {[rows, columns // PER_WORD]} and scales {list(grid)} for {list(shape)}",
                actual=f"{packed.dtype} {list(packed.shape)} and "
                + (f"{scale.dtype} {list(scale.shape)}" if scale else "no scales"),
                fix="fetch the checkpoint again, or correct group_size in config.json",
            )
            continue
        (chunk,), (beside,) = packed.chunks, scale.chunks
        values = Chunk(chunk.file, chunk.offset * INT4.per_item, (0, 0), shape)
        del folder.tensors[name + PACKED]
        folder.tensors[name] = Tensor(name, INT4.name, shape, (values,))
        found[name] = Scale(beside.file, beside.offset, scale.dtype, grid[1], (1, size), ((0, rows, 0),))
    return found


def _scale(folder: HfFolder, name: str, tensor: Tensor, stated: BlockSize | None, parts: int) -> Scale | None:
    shape = folder.tensors[name].shape
    block, grids = _grids(stated, tensor.shape, shape, parts)
    if tensor.dtype in SCALE_DTYPES and tensor.shape in grids:
        (chunk,) = tensor.chunks
        return Scale(chunk.file, chunk.offset, tensor.dtype, tensor.shape[1], block, grids[tensor.shape])
    folder.report.error(
        "scale-shape",
        f"the scale of {name} does not fit its blocks",
        where=str(folder.root),
        expected=f"{' or '.join(str(list(grid)) for grid in grids)} for {list(shape)} in blocks of {list(block)}",
        actual=f"{tensor.dtype} {list(tensor.shape)}",
        fix="the weight and its scale are of different releases, or weight_block_size in config.json is wrong",
    )
    return None


@lru_cache(maxsize=1024)
def _grids(stated: BlockSize | None, grid: Shape, shape: Shape, parts: int) -> tuple[BlockSize, dict[Shape, Bands]]:
    """The block size of a scale `grid` for a weight of `shape`, and the grids that would fit it with their bands."""
    rows, columns = shape if len(shape) == 2 else (0, 0)
    block = _block(stated, grid, (rows, columns))
    across = -(-columns // block[1])
    candidates = [_bands(rows, block[0], count) for count in (parts, 1) if count > 0 and rows % count == 0]
    return block, {(bands[-1][2], across): bands[:-1] for bands in candidates}


def _bands(rows: int, block: int, parts: int) -> Bands:
    """(first row, end row, first scale row) of every part, then an end mark whose last number is all scale rows."""
    each, step = rows // parts, -(-(rows // parts) // block)
    return (*((i * each, (i + 1) * each, i * step) for i in range(parts)), (rows, rows, parts * step))


def _stated_block(scheme: Mapping[str, Any]) -> BlockSize | None:
    stated = scheme.get("weight_block_size")
    if isinstance(stated, list) and len(stated) == 2 and all(type(n) is int and n > 0 for n in stated):
        return (stated[0], stated[1])
    return None


def _block(stated: BlockSize | None, grid: Shape, shape: BlockSize) -> BlockSize:
    """Rows and columns of a block: as stated, or one row each where the scale has one column per channel."""
    if len(grid) == 2 and grid == (shape[0], 1):
        return (1, max(1, shape[1]))
    return stated or (max(1, shape[0]), max(1, shape[1]))


def scale_names(folder: HfFolder) -> set[str]:
    """The names of what belongs to quantised weights, sound or not: scales, and the shapes of packed ones."""
    tensors = folder.tensors
    weights = [name for name, tensor in tensors.items() if tensor.dtype in (*FLOAT8, INT4.name)]
    return {name + suffix for suffix in (*SUFFIXES, PACKED_SHAPE) for name in weights if name + suffix in tensors}


def logical_dtype(tensor: Tensor, scales: Mapping[str, Scale]) -> str:
    """The dtype of a tensor once dequantised: bfloat16 for quantised ones, its own otherwise."""
    assert tensor.dtype in BY_NAME
    return "BF16" if tensor.name in scales else tensor.dtype
