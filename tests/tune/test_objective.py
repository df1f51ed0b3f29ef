"""The MTP objective: shifts, masks, and what moves what.

| loss | body | embedding | lm_head | MTP layers |
|---|---|---|---|---|
| main | moves | moves | moves | - |
| MTP | - | - | - | moves |
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpt_tools.tune import objective
from ckpt_tools.tune.objective import Loss, isolated, mtp_losses, scaled_sum, shifted
from ckpt_tools.tune.rolling import first_tokens, roll_left, roll_part, split

HIDDEN, WORDS = 16, 20
A, B, C, D, E = range(1, 6)


def test_inputs_and_labels_of_a_row() -> None:
    row = shifted(torch.tensor([A, B, C, D, E]), torch.ones(5))
    assert row.inputs.tolist() == [B, C, D, E, 0]
    assert row.labels.tolist() == [C, D, E, 0, 0]
    assert row.mask.tolist() == [True, True, True, False, False]


def test_the_mask_needs_input_and_label_to_be_generated() -> None:
    row = shifted(torch.tensor([A, B, C, D, E]), torch.tensor([1, 0, 1, 1, 0]))
    assert row.mask.int().tolist() == [0, 1, 0, 0, 0]


def test_whether_t_itself_was_generated_does_not_matter() -> None:
    generated = torch.tensor([0, 1, 1, 0, 0])
    assert shifted(torch.tensor([A, B, C, D, E]), generated).mask.int().tolist() == [1, 0, 0, 0, 0]


def test_deeper_layers_look_further() -> None:
    row = shifted(torch.tensor([A, B, C, D, E]), torch.tensor([0, 0, 1, 1, 1]), depth=1)
    assert row.inputs.tolist() == [C, D, E, 0, 0]
    assert row.labels.tolist() == [D, E, 0, 0, 0]
    assert row.mask.int().tolist() == [1, 1, 0, 0, 0]


def test_packed_sequences_are_shifted_as_if_each_were_alone() -> None:
    lengths = [5, 1, 4, 2]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    ids, generated = torch.arange(1, 13), torch.tensor([1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1])
    packed = shifted(ids, generated, partial(roll_left, cu_seqlens=cu_seqlens))
    alone = [shifted(*parts) for parts in zip(ids.split(lengths), generated.split(lengths), strict=True)]
    for together, parts in zip(packed, zip(*alone, strict=True), strict=True):
        assert torch.equal(together, torch.cat(parts))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_context_parallel_parts_are_shifted_as_the_whole_row(depth: int) -> None:
    """Every rank rolls its own part and knows of the others no more than the boundary tokens."""
    size, cu_seqlens = 2, torch.tensor([0, 8, 20])
    torch.manual_seed(0)
    ids, generated = torch.randint(1, 99, (20,)), torch.rand(20) < 0.8
    whole = shifted(ids, generated, partial(roll_left, cu_seqlens=cu_seqlens), depth)

    def on_every_rank(parts: list[Tensor]) -> list[Tensor]:
        firsts = torch.stack([first_tokens(part, size, cu_seqlens) for part in parts])
        return [roll_part(part, firsts, rank, cu_seqlens) for rank, part in enumerate(parts)]

    cut = partial(split, size=size, cu_seqlens=cu_seqlens)
    inputs, entered = ([cut(x, rank) for rank in range(size)] for x in (ids, generated))
    for _ in range(depth + 1):
        inputs, entered = on_every_rank(inputs), on_every_rank(entered)
    labels, predicted = on_every_rank(inputs), on_every_rank(entered)
    for rank in range(size):
        assert torch.equal(inputs[rank], cut(whole.inputs, rank))
        assert torch.equal(labels[rank], cut(whole.labels, rank))
        assert torch.equal(entered[rank] & predicted[rank], cut(whole.mask, rank))


class Layer(nn.Module):
    """A stand-in for an MTP layer: everything about it is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, hidden: Tensor, embeds: Tensor) -> Tensor:
        mixed: Tensor = self.project(torch.cat([hidden, embeds], -1)).tanh()
        return mixed


class Model(nn.Module):
    """A target with two MTP layers."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.body = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.lm_head, self.mtp = nn.Linear(HIDDEN, WORDS, bias=False), nn.ModuleList([Layer(), Layer()])
        if tied:
            self.lm_head.weight = self.embedding.weight

    def losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Main loss and MTP loss of one forward pass, as in training."""
        generated = torch.ones_like(ids, dtype=torch.bool)
        hidden = self.body(self.embedding(ids)).tanh()
        main = functional.cross_entropy(self.lm_head(hidden)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        mtp = mtp_losses([*self.mtp], self.embedding, self.lm_head, ids, hidden, generated)
        return main, scaled_sum(mtp, 0.2)


def moved_by(model: Model, loss: Tensor) -> set[str]:
    """The parts of the model that a loss has a gradient for."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}


def table(tied: bool) -> tuple[set[str], set[str], dict[str, Tensor]]:
    """What main and MTP loss move, and the gradients of both losses in one backward pass."""
    ids = torch.randint(WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    model = Model(tied)
    by_main, by_mtp = moved_by(model, model.losses(ids)[0]), moved_by(model, model.losses(ids)[1])
    model.zero_grad(set_to_none=True)
    sum(model.losses(ids), torch.zeros(())).backward()
    return by_main, by_mtp, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tied", [False, True])
def test_which_loss_moves_which_parameters(tied: bool) -> None:
    by_main, by_mtp, both = table(tied)
    assert by_main == {"embedding", "body"} | (set() if tied else {"lm_head"})
    assert by_mtp == {"mtp"}
    model = Model(tied)
    ids = torch.randint(WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    model.losses(ids)[0].backward()
    for name, parameter in model.named_parameters():
        if not name.startswith(
            "mtp"
        ):  # one backward pass over both losses moves the target as the main loss alone does
            assert parameter.grad is not None
            assert torch.equal(both[name], parameter.grad)


def test_the_isolated_head_computes_the_same_and_passes_gradients_on() -> None:
    head, x = nn.Linear(4, 6), torch.randn(3, 4, requires_grad=True)
    assert torch.equal(isolated(head)(x), head(x))
    isolated(head)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.any()
    assert all(parameter.grad is None for parameter in head.parameters())


def test_a_row_without_generated_tokens_has_no_loss_and_no_nan() -> None:
    model, ids = Model(tied=True), torch.ones(1, 6, dtype=torch.long)
    (loss, _) = mtp_losses([*model.mtp], model.embedding, model.lm_head, ids, torch.randn(1, 6, HIDDEN), ids * 0)
    assert (loss.mean.item(), loss.count.item()) == (0, 0)
    loss.mean.backward()


def test_sums_add_up_over_ranks_where_means_do_not() -> None:
    one, other = Loss(torch.tensor(6.0), torch.tensor(2)), Loss(torch.tensor(1.0), torch.tensor(1))
    assert Loss(one.total + other.total, one.count + other.count).mean == pytest.approx(7 / 3)
    assert scaled_sum([one, other], 0.2) == pytest.approx(0.1 * (3 + 1))


# --- each fault is noticed ----------------------------------------------------------------------------------------------


def leaky(head: nn.Module) -> nn.Module:
    """An lm_head called as it is."""
    return head


def test_the_table_notices_a_leak_through_the_lm_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "isolated", leaky)
    assert table(tied=False)[1] == {"mtp", "lm_head"}


@pytest.mark.parametrize(
    ("leaking", "leaks"), [({0}, {"embedding", "body"}), ({1, 2}, {"embedding"})], ids=["hidden states", "embeddings"]
)
def test_the_table_notices_a_leak_through_an_input(
    leaking: set[int], leaks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden states are cut first, then the embeddings of each of the two layers."""
    ids = torch.randint(WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    calls = iter(range(3))
    monkeypatch.setattr(objective, "cut", lambda x: x if next(calls) in leaking else x.detach())
    model = Model(tied=False)
    assert moved_by(model, model.losses(ids)[1]) == {"mtp"} | leaks
