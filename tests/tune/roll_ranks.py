"""What megatron-core's own `roll_tensor` makes of rows, on one process and on two gloo ranks under context parallelism.

`python -m tests.tune.roll_ranks CASES.pt OUT` writes OUT/0.pt and OUT/1.pt: for every case of the list, a pair of what
Megatron's `roll_tensor` and our `roll_in_context` make of this rank's part, the part split by Megatron where it can.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIZE = 2


class Case(NamedTuple):
    """A row [..., S] and the boundaries of its sequences (None: one sequence per row)."""

    row: Tensor
    cu_seqlens: Tensor | None


def main(cases_file: Path, out: Path) -> int:
    """Fork the ranks after the slow import; returns 1 if one of them failed."""
    warnings.filterwarnings("ignore")
    from tests.oracles.megatron import shims

    shims.install()
    pids = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, cases_file, out)
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _be_rank(rank: int, cases_file: Path, out: Path) -> None:
    try:
        cases = [Case(*case) for case in torch.load(cases_file)]
        rendezvous = f"file://{out / 'rendezvous'}"
        torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=SIZE)
        torch.save([_rolled(case, rank) for case in cases], out / f"{rank}.pt")
        torch.distributed.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _rolled(case: Case, rank: int) -> tuple[Tensor, Tensor]:
    from megatron.core.transformer.multi_token_prediction import roll_tensor
    from megatron.core.utils import get_batch_on_this_cp_rank

    from ckpt_tools.tune.rolling import roll_in_context, split

    group: Any = torch.distributed.group.WORLD
    if case.cu_seqlens is None:
        part = get_batch_on_this_cp_rank({"row": case.row}, group)["row"]
    else:  # Megatron splits packed rows with TransformerEngine, which needs a GPU: each sequence by itself is the same
        ends = case.cu_seqlens.tolist()
        sequences = [case.row[..., start:end] for start, end in itertools.pairwise(ends)]
        part = torch.cat([get_batch_on_this_cp_rank({"row": one}, group)["row"] for one in sequences], -1)
    if not torch.equal(part, split(case.row, rank, SIZE, case.cu_seqlens)):
        raise ValueError("the row is split in another way than Megatron's")
    packed: Any = None if case.cu_seqlens is None else packed_params(case.cu_seqlens)
    return roll_tensor(part, cp_group=group, packed_seq_params=packed)[0], roll_in_context(part, group, case.cu_seqlens)


def packed_params(cu_seqlens: Tensor) -> Any:
    """Megatron's description of a packed row."""
    from megatron.core.packed_seq_params import PackedSeqParams

    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
