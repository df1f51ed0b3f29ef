"""Element types: safetensors names are the vocabulary; torch's names and storage classes stand beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """`name` as in safetensors headers, `torch` as in `torch.<name>`.

    `storage` is the legacy storage class in pickles; "" where torch has none and pickles an untyped storage. `per_item`
    are the values of an item that holds several: offsets and widths of such a tensor count values.
    """

    name: str
    itemsize: int
    torch: str
    storage: str
    per_item: int = 1


DTYPES: tuple[DType, ...] = (
    DType("BF16", 2, "bfloat16", "BFloat16Storage"),
    DType("F16", 2, "float16", "HalfStorage"),
    DType("F32", 4, "float32", "FloatStorage"),
    DType("F64", 8, "float64", "DoubleStorage"),
    DType("F8_E4M3", 1, "float8_e4m3fn", ""),
    DType("F8_E5M2", 1, "float8_e5m2", ""),
    DType("F8_E8M0", 1, "float8_e8m0fnu", ""),
    DType("I64", 8, "int64", "LongStorage"),
    DType("I32", 4, "int32", "IntStorage"),
    DType("I16", 2, "int16", "ShortStorage"),
    DType("I8", 1, "int8", "CharStorage"),
    DType("U8", 1, "uint8", "ByteStorage"),
    DType("BOOL", 1, "bool", "BoolStorage"),
    DType("U16", 2, "uint16", ""),
    DType("U32", 4, "uint32", ""),
    DType("U64", 8, "uint64", ""),
)
INT4 = DType("I4", 1, "", "", per_item=2)  # no dtype of a header: what packed weights are read as
BY_NAME = {dtype.name: dtype for dtype in (*DTYPES, INT4)}
STORED = frozenset(dtype.name for dtype in DTYPES)
BY_TORCH = {dtype.torch: dtype for dtype in DTYPES}
BY_STORAGE = {dtype.storage: dtype for dtype in DTYPES if dtype.storage}
FLOATS = ("BF16", "F16", "F32", "F64")
