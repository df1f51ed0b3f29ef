"""Every family's MTP layers: the same logits as transformers' own MtpModel, lossless, and drafts that are right."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.head import Head, causal_mask
from ckpt_tools.speculate.target import Target, load_target
from tests.checkpoints import changed_config
from tests.conftest import Tiny
from tests.oracles.megatron.forward import HfForward

from . import worlds
from .conftest import Clockwork

NEXTN = ("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "deepseek_v3", "deepseek_v32")
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
WRAPPED = ("qwen3_5", "qwen3_5_moe")
EVERY = ("mimo", *NEXTN, "kimi_k2", *HYBRID, *WRAPPED)
IDS = [5, 9, 11, 3, 22, 30, 7, 7, 12, 1, 39, 0]


def opened(folder: Path) -> tuple[Target, Head]:
    target = load_target(folder)
    return target, build_head(open_draft(folder), target)


def sizes(family: str, **more: Any) -> dict[str, Any]:
    return {"layers": 4 if family in (*HYBRID, *WRAPPED) else 2, "mtp": 1, "dtype": "float32", **more}


def rows(target: Target, head: Head, ids: list[int]) -> list[torch.Tensor]:
    """Logits of every layer over a whole text: layer k reads the rows of layer k - 1 and the tokens one further on."""
    x = torch.tensor([ids])
    hidden, found = target.body(input_ids=x).last_hidden_state, []
    for layer in range(head.depth):
        embeds = head.embed(x[:, layer + 1 :])
        count = embeds.shape[1]
        positions = torch.arange(count)[None]
        out = head(hidden[:, :-1], embeds, positions, None, causal_mask(count, 0, embeds), layer)
        hidden = out.hidden
        found.append(head.logits(out.features))
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("family", [*NEXTN, *HYBRID])
def test_logits_are_those_of_transformers(family: str, tiny: Tiny) -> None:
    mtp = 1 if family in HYBRID else 2
    folder = tiny(family, **sizes(family, mtp=mtp))
    with changed_config(folder) as config:
        config["num_nextn_predict_layers"] = mtp
    target, head = opened(folder)
    with torch.inference_mode():
        for ours, theirs in zip(
            rows(target, head, IDS), HfForward(folder).mtp_logits(torch.tensor([IDS])), strict=True
        ):
            assert float(theirs.std()) > 0.1
            torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


@pytest.mark.oracle
def test_mimo_is_its_layer_in_its_own_order_but_for_the_first_token(tiny: Tiny) -> None:
    """SGLang's MiMo layer reads no token at position 0, which transformers' Qwen2 layer does not know about."""
    folder = tiny("mimo", **sizes("mimo", mtp=2))
    target, head = opened(folder)
    wanted = HfForward(folder).mtp_logits(torch.tensor([IDS]))
    with torch.inference_mode():
        blind = rows(target, head, IDS)
        head.blind_at_start = False  # type: ignore[assignment]
        for ours, theirs, other in zip(rows(target, head, IDS), wanted, blind, strict=True):
            torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)
            assert float((other - theirs).abs().max()) > 1e-3


@pytest.mark.parametrize("family", EVERY)
def test_a_clockwork_head_is_lossless_and_nearly_always_right(family: str, clockwork: Clockwork) -> None:
    """Some drafts are rejected, so that caches and recurrent states are rolled back."""
    folder = clockwork(family, noise=2.5, **sizes(family, hidden=64))
    target, head = opened(folder)
    limits, counters = Limits(24), Counters(3)
    alone = plain(target, worlds.START, limits)
    found = speculative(target, head, worlds.START, limits, counters)
    assert found.tokens == alone.tokens
    after, text = worlds.successor(40).tolist(), [worlds.START[-1], *alone.tokens]
    assert all(after[a] == b for a, b in pairwise(text))
    assert 0.2 < counters.accept_rate < 1


@pytest.mark.parametrize("family", ["mimo", "glm4_moe", "deepseek_v3"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_several_layers_draft_one_token_each(family: str, steps: int, clockwork: Clockwork) -> None:
    target, head = opened(clockwork(family, noise=2.5, **sizes(family, hidden=64, mtp=3)))
    limits, counters = Limits(24), Counters(steps)
    assert (
        speculative(target, head, worlds.START, limits, counters).tokens == plain(target, worlds.START, limits).tokens
    )
    assert 0.2 < counters.accept_rate < 1


def test_cached_rows_of_several_layers_equal_a_whole_pass(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft of every round, although caches are cut and grown, is what the layers say of the text so far."""
    target, head = opened(tiny("deepseek_v3", **sizes("deepseek_v3", mtp=3)))
    asked: list[tuple[list[int], list[int]]] = []
    from ckpt_tools.speculate import chain as module

    real = module.Chain.draft

    def watched(self: Any, steps: int, choose: Any) -> Any:
        draft = real(self, steps, choose)
        asked.append((list(self._tokens), draft.tokens))
        return draft

    monkeypatch.setattr(module.Chain, "draft", watched)
    speculative(target, head, IDS[:4], Limits(10), Counters(3))
    assert len(asked) > 5
    with torch.inference_mode():
        for tokens, drafted in asked:
            text = [IDS[0], *tokens]
            for step, token in enumerate(drafted):
                logits = rows(target, head, [*text, *drafted[:step]])[step]
                assert int(logits[0, -1].argmax()) == token


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("experts", ["per-expert", "packed"])
def test_what_is_loaded_is_given_back_under_its_own_names(family: str, experts: str, tiny: Tiny) -> None:
    """C4: experts one by one or packed."""
    if experts == "packed" and family in ("mimo", "qwen3_5", "qwen3_5_text"):
        pytest.skip("no experts")
    options = {} if family in ("mimo", "qwen3_5", "qwen3_5_text") else {"mtp_experts": experts}
    folder = tiny(family, **sizes(family, **options))
    _, head = opened(folder)
    stored, spec = load_file(folder / "model.safetensors"), open_draft(folder)
    given = head.canonical_state()
    assert given.keys() == spec.tensors.keys()
    assert all(torch.equal(tensor, stored[name].float()) for name, tensor in given.items())


def test_packed_and_single_experts_are_one_head(tiny: Tiny) -> None:
    both = [opened(tiny("glm4_moe", **sizes("glm4_moe", mtp_experts=form))) for form in ("per-expert", "packed")]
    values = [head.canonical_state()["model.layers.2.eh_proj.weight"] for _, head in both]
    assert torch.equal(*values)


def test_a_head_of_another_width_is_refused(tiny: Tiny) -> None:
    """L8, where nobody asked verify-draft first."""
    target = load_target(tiny("mimo", **sizes("mimo", hidden=48)))
    with pytest.raises(CkptError) as caught:
        build_head(open_draft(tiny("mimo", **sizes("mimo"))), target)
    assert [finding.code for finding in caught.value.findings] == ["hidden-size"]
