"""What a conversion is asked for and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Finding

MTP_AUTO, MTP_DROP = "auto", "drop"
AUTO, STACKED, PER_LAYER = "auto", "stacked", "per-layer"
TORCH_DIST, HF = "torch-dist", "hf"
DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults are those of the command line. `dtype` is a safetensors name or None (keep every tensor's own).

    `variants` choose among on-disk names of the same Megatron tensor, such as {"norms": "separate"}.
    """

    to: str | None = None
    hf_config: Path | None = None
    mtp: str | int = MTP_AUTO
    layout: str = AUTO
    dtype: str | None = None
    make_vocab_size_divisible_by: int = 128
    tp: int = 1
    max_shard_size: int = 5_000_000_000
    verify: bool = False
    overwrite: bool = False
    dry_run: bool = False
    variants: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """`timing` is empty for a dry run; `facts` are printed as they are."""

    source: str
    destination: str
    to: str
    family: str
    mtp_found: int
    mtp_written: int
    tensors: int
    nbytes: int
    files: int
    layout: str
    vocab_size: int
    padded_vocab_size: int
    dry_run: bool
    verified: bool | None = None
    sidecars: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
