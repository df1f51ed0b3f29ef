"""The same verification on CUDA: lossless in float32 and bfloat16, and the device agrees with the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.head import causal_mask
from ckpt_tools.speculate.lossless import compare
from ckpt_tools.speculate.target import Run, load_target
from ckpt_tools.speculate.tree import TreeShape
from tests.conftest import Tiny
from tests.speculate import worlds
from tests.speculate.test_quantised import in_float8

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
FAMILIES = ("mimo", "glm4_moe", "deepseek_v3", "qwen3_next")
# Largest difference of logits of size 1 between CPU and GPU in float32 (TF32 is off by default).
AGREEING = 1e-3


def world(family: str, tiny: Tiny) -> Path:
    layers = 4 if family == "qwen3_next" else 2
    return worlds.clockwork(tiny(family, layers=layers, hidden=64, mtp=1, dtype="float32"), noise=2.5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lossless_on_the_gpu(family: str, dtype: torch.dtype, tiny: Tiny) -> None:
    folder = world(family, tiny)
    target = load_target(folder, "cuda", dtype)
    head, counters = build_head(open_draft(folder), target), Counters(3)
    alone = plain(target, worlds.START, Limits(32)).tokens
    found = speculative(target, head, worlds.START, Limits(32), counters).tokens
    assert compare(target, worlds.START, alone, found)[1] is None
    assert 0 < counters.accepted < counters.proposed


@pytest.mark.parametrize("family", ["mimo", "glm4_moe"])
def test_trees_on_the_gpu(family: str, tiny: Tiny) -> None:
    folder, shape = world(family, tiny), TreeShape(3, 2, 7)
    target = load_target(folder, "cuda")
    head, counters = build_head(open_draft(folder), target), Counters(3, drafts=shape.drafts)
    alone = plain(target, worlds.START, Limits(32)).tokens
    found = speculative(target, head, worlds.START, Limits(32), counters, shape=shape).tokens
    assert compare(target, worlds.START, alone, found)[1] is None
    assert 0 < counters.accepted < counters.proposed


@pytest.mark.parametrize("family", ["mimo", "glm4_moe"])
def test_a_float8_model_is_dequantised_on_the_gpu_too(family: str, tiny: Tiny) -> None:
    folder = in_float8(world(family, tiny), (4, 4))
    target = load_target(folder, "cuda", torch.bfloat16)
    assert not any(tensor.dtype == torch.float8_e4m3fn for tensor in target.model.state_dict().values())
    head, counters = build_head(open_draft(folder), target), Counters(3)
    alone = plain(target, worlds.START, Limits(32)).tokens
    found = speculative(target, head, worlds.START, Limits(32), counters).tokens
    assert compare(target, worlds.START, alone, found)[1] is None
    assert 0 < counters.accepted < counters.proposed


@pytest.mark.parametrize("family", FAMILIES)
def test_both_devices_agree(family: str, tiny: Tiny) -> None:
    folder, logits = world(family, tiny), []
    for device in ("cpu", "cuda"):
        target = load_target(folder, device)
        head = build_head(open_draft(folder), target)
        _, features = Run(target).feed(worlds.START[:-1])
        embeds = head.embed(torch.tensor([worlds.START[1:]], device=device))
        rows = embeds.shape[1]
        positions = torch.arange(rows, device=device)[None]
        out = head(features, embeds, positions, head.new_cache(), causal_mask(rows, 0, embeds))
        logits.append(head.logits(out.features).cpu())
    torch.testing.assert_close(logits[0], logits[1], atol=AGREEING, rtol=AGREEING)
