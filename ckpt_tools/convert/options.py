"""What a conversion is asked for and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MTP_AUTO, MTP_DROP = "auto", "drop"
AUTO, STACKED, PER_LAYER = "auto", "stacked", "per-layer"
TORCH_DIST, HF = "torch-dist", "hf"
REFUSE, DROP, CARRY = "refuse", "drop", "carry"
KEEP_MAIN = "keep-main"
DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults are those of the command line. `dtype` is a safetensors name or None (keep every tensor's own).

    `variants` choose among on-disk forms of the same tensors, such as {"norms": "separate", "gdn": "slime"}. `quantize`
    writes block-fp8 again where the original had it. `rest` says what happens to tensors that are not the language model's,
    `duplicates` to stored copies that differ from their original.
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
    checksums: bool = False
    overwrite: bool = False
    dry_run: bool = False
    quantize: bool = False
    rest: str = REFUSE
    duplicates: str = REFUSE
    variants: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """`timing` is empty for a dry run; `verified` is None unless asked for. `resumed` bytes were written by an earlier run.

    `nbytes` are written and `nbytes_read` read; `memory` is the most anonymous memory to expect, `disk_needed` what has still
    to be free. `carried` tensors are outside the table and travel byte for byte: on the way back they are the original's.
    `sidecars` are the files that travel beside the weights, `absent` the usual ones that are not there.
    """

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
    nbytes_read: int = 0
    memory: int = 0
    disk_needed: int = 0
    disk_free: int = 0
    carried: int = 0
    verified: bool | None = None
    resumed: int = 0
    sidecars: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
