"""What a head and the key-value cache take of a GPU, estimated from shapes: no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..drafts.spec import MTP
from ..families.dims import Dims
from ..mapping.rules import hf_shapes
from ..stores.dtypes import BY_NAME
from ..stores.torch_dist.reader import TorchDist
from .case import Case
from .parallel import server_ranks

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FP8 = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `head` is the whole head, `head_per_rank` what one of `ranks` tensor-parallel GPUs holds of it: matrices are
    shared, the rest is on every rank. `cache_per_token` and `head_cache_per_token` are for one token on one rank, for the
    target's layers and for the head's; the head's cache has as many tokens as the target's."""

    ranks: int
    head: int
    head_per_rank: int
    cache_per_token: int
    head_cache_per_token: int


def estimate(case: Case) -> Memory | None:
    """None without a model whose family is known, or without a dtype in its config."""
    d = case.dims
    width = BYTES.get(str(_field(case, "dtype") or _field(case, "torch_dtype") or ""))
    if d is None or width is None:
        return None
    tp, attention = server_ranks(case) or (1, 1)
    if attention < 1:
        return None
    cached = case.text(case.serving, "kv-cache-dtype") in FP8
    token = token_bytes(d, attention, 1 if cached else width)
    attended = d.num_hidden_layers - (len(d.gdn.layers) if d.gdn else 0)
    head, matrices = _head(case, d, width)
    return Memory(
        ranks=tp,
        head=head,
        head_per_rank=matrices // tp + head - matrices,
        cache_per_token=token * attended,
        head_cache_per_token=_head_cache(case, token, attention, 1 if cached else width),
    )


def _head(case: Case, d: Dims, width: int) -> tuple[int, int]:
    """(bytes of the head, bytes of its matrices)."""
    if case.head is not None:
        tensors = [entry.tensor for entry in case.head.tensors.values()]
        return sum(t.nbytes for t in tensors), sum(t.nbytes for t in tensors if len(t.shape) > 1)
    if case.family is None or not case.mtp:
        return 0, 0
    if case.stored and isinstance(case.stored.store, TorchDist):
        entries = case.stored.store.contents.tensors.values()
        stored = [
            (e.shape, prod(e.shape) * BY_NAME[e.dtype].itemsize) for e in entries if e.name.partition(".")[0] == MTP
        ]
        return sum(size for _, size in stored), sum(size for shape, size in stored if len(shape) > 1)
    chosen = case.family.defaults()
    body = hf_shapes(case.family.table(d, 0, d.vocab_size, chosen)).keys()
    every = hf_shapes(case.family.table(d, case.mtp, d.vocab_size, chosen))
    shapes = [shape for name, shape in every.items() if name not in body]
    return sum(map(prod, shapes)) * width, sum(prod(shape) for shape in shapes if len(shape) > 1) * width


def _head_cache(case: Case, token: int, ranks: int, width: int) -> int:
    """An EAGLE head has attention of its own; MTP layers have the target's."""
    head = case.head
    if head is None or head.kind == MTP:
        return token * (head.mtp_layers if head else case.mtp or 0)
    if head.mla is not None:
        return head.num_layers * (head.mla.kv_lora_rank + head.mla.qk_rope_head_dim) * width
    return head.num_layers * 2 * max(1, head.num_key_value_heads // ranks) * head.head_dim * width


def token_bytes(d: Dims, ranks: int, width: int) -> int:
    """One token in one layer on one rank: keys and values of its share of the groups, or the whole latent vector."""
    if d.mla is not None:
        return (d.mla.kv_lora_rank + d.mla.qk_rope_head_dim) * width
    return 2 * max(1, d.num_key_value_heads // ranks) * d.head_dim * width


def _field(case: Case, name: str) -> object:
    nested = case.config.get("text_config")
    return case.config.get(name) or (nested.get(name) if isinstance(nested, dict) else None)
