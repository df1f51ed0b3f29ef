"""Padding of the vocabulary: the rows that training makes of it, against those that are stored.

Megatron loads embedding and output layer of another padded size: missing rows are zero, surplus rows are left out
(`allow_shape_mismatch` in megatron-core's tensor_parallel/layers.py and language_module.py; zeroed in
dist_checkpointing/strategies/torch.py). That is exact while every token has its row, and silent where one has not. Flat
buffers of the distributed optimizer are of one size only (optimizer/distrib_optimizer.py). slime takes the same rule for the
rows, and sends the server those of the tokens alone (megatron_to_hf/processors).
"""

from __future__ import annotations

from ..errors import Finding
from ..families.arguments import padded_vocabulary
from ..refs import expanded
from ..stores.torch_dist.reader import TorchDist
from .case import Case

NAME = "padded vocabulary"
DIVISIBLE_BY = 128  # Megatron's default of --make-vocab-size-divisible-by
FLAT_BUFFERS = "optimizer.distributed."
NOT_RESUMING = ("finetune", "no-load-optim")


def check_vocabulary(case: Case) -> None:
    """D1: the rows that training pads the vocabulary to, against those that are stored."""
    vocab = case.number(case.training, "vocab-size")
    tp = case.number(case.training, "tensor-model-parallel-size") or 1
    divisible_by = case.number(case.training, "make-vocab-size-divisible-by") or DIVISIBLE_BY
    if case.stored is None or vocab is None or vocab < 1 or min(tp, divisible_by) < 1:
        case.skipped(NAME, "no torch-dist" if case.stored is None else "no --vocab-size")
        return
    wanted = case.number(case.training, "padded-vocab-size") or padded_vocabulary(vocab, divisible_by, tp)
    stored = case.stored.stored_vocab
    if stored == wanted:
        case.passed(NAME, f"{wanted} rows", f"{stored} rows")
    elif min(stored, wanted) < vocab:
        what = f"{vocab} tokens need a row each: Megatron fills the missing ones with zeros, or leaves them out, without a word"
        fix = "name the checkpoint of this vocabulary" if stored < vocab else "correct --padded-vocab-size"
        _differ(case, stored, wanted, "vocab-too-small", what, fix)
    elif _resumes(case):
        what = "the optimizer's flat buffers are of one padded size, and Megatron refuses them at another"
        fix = "train with the sizes of this checkpoint, or begin anew from its weights: --finetune, --no-load-optim"
        _differ(case, stored, wanted, "padded-vocab-optimizer", what, fix)
    else:
        what = (
            f"training pads {vocab} rows to a multiple of {divisible_by} x {tp}, and the checkpoint has another number"
        )
        fix = f"nothing: Megatron loads it exactly; `convert --tp {tp} --make-vocab-size-divisible-by {divisible_by}` fits"
        _differ(case, stored, wanted, "padded-vocab", what, fix, "warning")


def _differ(case: Case, stored: int, wanted: int, code: str, what: str, fix: str, severity: str = "error") -> None:
    assert case.stored is not None
    where, expected, actual = str(case.stored.store.root), f"{wanted} rows", f"{stored} rows"
    case.found(NAME, Finding(code, what, where, expected, actual, fix, severity=severity))


def _resumes(case: Case) -> bool:
    """Whether the optimizer's state is loaded with the weights: a run that goes on (--load) and saved flat buffers."""
    assert case.stored is not None
    store, load = case.stored.store, case.training.first("load")
    if load is None or load.unknown or not load.values or any(flag in case.training for flag in NOT_RESUMING):
        return False
    root = expanded(load.values[0])
    buffers = isinstance(store, TorchDist) and any(FLAT_BUFFERS in name for name in store.training_keys)
    return buffers and root.resolve() in (store.root.resolve(), store.root.resolve().parent)
