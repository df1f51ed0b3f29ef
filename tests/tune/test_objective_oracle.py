"""megatron-core's own MTP loss on the same weights: equal losses and gradients, and faults that it notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ckpt_tools.tune import objective
from ckpt_tools.tune.objective import Loss, mtp_losses, scaled_sum, shifted
from ckpt_tools.tune.rolling import roll_left

from ..oracles.megatron.configs import tiny_config
from ..oracles.megatron.forward import HfForward, rms_norm
from ..oracles.megatron.run import run_job
from ..oracles.megatron.tiny import tiny_tensors, write_folder

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
BATCH, LENGTH, DEPTHS = 2, 24, 2
# Seen: 3e-7 of a loss of about 5, and 2e-6 of a gradient's largest entry: fp32 sums in another order.
TOLERANCE = 1e-5


class Judged:
    """A tiny MiMo with two MTP layers, a batch with gaps in what was generated, and what Megatron says of it."""

    def __init__(self, base: Path, tied: bool) -> None:
        config = tiny_config("mimo", num_nextn_predict_layers=DEPTHS, tie_word_embeddings=tied)
        self.folder = write_folder(base / "hf", config, tiny_tensors(config))
        generator = torch.Generator().manual_seed(7)
        self.ids = torch.randint(config["vocab_size"], (BATCH, LENGTH), generator=generator)
        self.generated = torch.rand(BATCH, LENGTH, generator=generator) < 0.7
        # Megatron is given labels x_{t+1} and a mask over them, and rolls both once per depth. For the mask to be ours after
        # that, it must say at t that x_t and x_{t+1} were generated.
        mask = self.generated & roll_left(self.generated)
        self.step = {
            "kind": "mtp_loss",
            "hf": str(self.folder),
            "ids": self.ids.tolist(),
            "labels": roll_left(self.ids).tolist(),
            "loss_mask": mask.float().tolist(),
            "out": str(base / "gradients.safetensors"),
        }
        self.result: dict[str, Any] = {}

    def ours(self) -> tuple[list[Loss], dict[str, Tensor]]:
        """Our losses over transformers' modules, and the gradients of the MTP parameters, under Megatron's names."""
        judge = HfForward(self.folder)
        prefix = "model.mtp_layers."
        mtp = {n: t.clone().requires_grad_() for n, t in judge.tensors.items() if n.startswith(prefix)}
        layers = [mimo_layer(judge, below(mtp, f"{prefix}{k}.")) for k in range(DEPTHS)]
        with torch.no_grad():
            hidden = judge.model.model(self.ids).last_hidden_state
        embedding, lm_head = judge.model.model.embed_tokens, judge.model.lm_head
        losses = mtp_losses(layers, embedding, lm_head, self.ids, hidden, self.generated)
        scaled_sum(losses, self.result["factor"]).backward()
        assert all(parameter.grad is None for parameter in judge.model.parameters())
        return losses, {name: t.grad for name, t in mtp.items() if t.grad is not None}


def below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def mimo_layer(judge: HfForward, weights: dict[str, Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """One of MiMo's MTP layers over whole rows: every position sees itself and what is before, at rotary positions 0.."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

    eps = judge.config["rms_norm_eps"]
    own = ("hidden_layernorm", "token_layernorm", "final_layernorm", "input_proj")
    hidden_norm, token_norm, final_norm, project = (weights[f"{name}.weight"] for name in own)
    decoder = Qwen2DecoderLayer(judge.model.config, 0).eval()
    rest = {name: t for name, t in weights.items() if name.split(".")[0] not in own}

    def call(hidden: Tensor, embeds: Tensor) -> Tensor:
        x = torch.cat([rms_norm(hidden, hidden_norm, eps), rms_norm(embeds, token_norm, eps)], -1) @ project.T
        size = x.shape[1]
        causal = torch.full((1, 1, size, size), float("-inf")).triu(1)
        rotary = judge.model.model.rotary_emb(x, torch.arange(size)[None])
        inputs = {"attention_mask": causal, "position_embeddings": rotary}
        x = torch.func.functional_call(decoder, rest, (x,), inputs, strict=True)
        return rms_norm(x, final_norm, eps)

    return call


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Judged]:
    """By whether embedding and lm_head are tied; one job judges both."""
    made = {tied: Judged(tmp_path_factory.mktemp("judged"), tied) for tied in (False, True)}
    results = run_job({"steps": [one.step for one in made.values()]})["steps"]
    for one, result in zip(made.values(), results, strict=True):
        one.result = result
    return made


def difference(one: Judged) -> float:
    """How far our losses are from Megatron's, relative."""
    losses, _ = one.ours()
    assert len(losses) == len(one.result["losses"]) == DEPTHS
    return max(abs(a.mean.item() - b) / b for a, b in zip(losses, one.result["losses"], strict=True))


@pytest.mark.parametrize("tied", [False, True])
def test_losses_and_gradients_are_megatrons(judged: dict[bool, Judged], tied: bool) -> None:
    one = judged[tied]
    assert difference(one) < TOLERANCE
    _, ours = one.ours()
    theirs = load_file(one.step["out"])
    for k in range(DEPTHS):
        # Megatron's joint projection reads [embedding, hidden], MiMo's [hidden, embedding].
        h, e = ours[f"model.mtp_layers.{k}.input_proj.weight"].chunk(2, 1)
        pairs = {
            "eh_proj.weight": torch.cat([e, h], 1),
            "hnorm.weight": ours[f"model.mtp_layers.{k}.hidden_layernorm.weight"],
            "enorm.weight": ours[f"model.mtp_layers.{k}.token_layernorm.weight"],
            "final_layernorm.weight": ours[f"model.mtp_layers.{k}.final_layernorm.weight"],
            "transformer_layer.mlp.linear_fc2.weight": ours[f"model.mtp_layers.{k}.mlp.down_proj.weight"],
            "transformer_layer.self_attention.linear_proj.weight": ours[
                f"model.mtp_layers.{k}.self_attn.o_proj.weight"
            ],
        }
        for name, found in pairs.items():
            expected = theirs[f"mtp.layers.{k}.{name}"]
            assert (found - expected).abs().max() < TOLERANCE * expected.abs().max(), name


def test_megatrons_own_mtp_loss_also_moves_the_target(judged: dict[bool, Judged]) -> None:
    """Why isolation is needed: upstream, the MTP loss reaches embedding, body and lm_head."""
    moved = judged[False].result["moved"]
    assert {"embedding.word_embeddings.weight", "output_layer.weight"} <= set(moved)
    assert any(name.startswith("decoder.layers.0.") for name in moved)


def shifted_once(ids: Tensor, generated: Tensor, roll: Any = roll_left, depth: int = 0) -> Any:
    """Labels off by one token: what goes in is what is predicted."""
    row = shifted(ids, generated, roll, depth)
    return row._replace(labels=row.inputs)


def mask_of_t(ids: Tensor, generated: Tensor, roll: Any = roll_left, depth: int = 0) -> Any:
    """The masks of t and t + 1 instead of t + 1 and t + 2."""
    row = shifted(ids, generated, roll, depth)
    return row._replace(mask=generated & roll(generated))


@pytest.mark.parametrize("fault", [shifted_once, mask_of_t])
def test_megatron_notices_a_shifted_label_and_a_swapped_mask(
    judged: dict[bool, Judged], fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "shifted", fault)
    assert difference(judged[False]) > 100 * TOLERANCE
