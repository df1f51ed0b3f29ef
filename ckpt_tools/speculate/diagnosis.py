"""What is wrong with a head that predicts badly: known damages are undone on trial, and the head is judged again.

A repair that makes the same head predict the same text clearly better names the damage. Where none does, the head's own
confidence tells: one that was never trained spreads its probability over the vocabulary; one that was trained for other
hidden states is sure and wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from ..drafts.spec import D2T, EAGLE3, FC, MTP, DraftSpec
from ..errors import Finding
from .eagle import EagleHead
from .head import Head
from .loss import Judged, Rows, judge, vocabulary
from .mtp import MtpHead
from .results import HeadLoss

Tensors = Mapping[str, Tensor]
USELESS = 0.85  # cross-entropy of that share of ln(V) or more: no better than guessing
UNSURE = 0.5  # entropy of that share of ln(V) or more: spread over the vocabulary
GAIN, SIGMAS = 0.05, 2.5  # nats that a repair must win, and how far beyond their standard error
JUDGED = 512  # positions that every repair is tried on
MOST_FEATURES = 4  # orders of more features are too many to try


@dataclass(frozen=True)
class Repair:
    """A damage with the tensors that undoing it would give."""

    code: str
    what: str
    fix: str
    tensors: Callable[[], dict[str, Tensor]]


def diagnose(spec: DraftSpec, head: Head, tensors: Tensors, rows: Sequence[Rows], found: HeadLoss) -> list[Finding]:
    """Findings about the head's weights; `tensors` are those it was loaded with, `found` is how it does now."""
    best = _best(spec, head, tensors, rows, judge(head, rows, JUDGED))
    if best is not None:
        return [best]
    if found.nats < USELESS * found.uniform:
        return []
    figures = f"cross-entropy {found.nats:.3f}, entropy {found.entropy:.3f} nats"
    guessing = f"cross-entropy clearly below ln(V) = {found.uniform:.3f} (guessing)"
    if found.entropy >= UNSURE * found.uniform:
        fix = "the weights were initialised and never trained or never loaded; export them again"
        return [
            Finding("head-like-random", "the head predicts like a random one", str(spec.source), guessing, figures, fix)
        ]
    return [
        Finding(
            "head-of-another-target",
            "the head is sure and wrong: it was trained for other hidden states than this target's",
            str(spec.source),
            guessing,
            figures,
            "name the target that the head was trained for; no known damage explains it",
        )
    ]


def _best(spec: DraftSpec, head: Head, tensors: Tensors, rows: Sequence[Rows], before: Judged) -> Finding | None:
    """The finding of the repair that helps most, if any clearly does."""
    assert isinstance(head, EagleHead | MtpHead)
    found: list[tuple[float, Repair, Judged]] = []
    try:
        for repair in repairs(spec, tensors):
            head.load({**tensors, **{name: part.to(head.device) for name, part in repair.tensors().items()}})
            after = judge(head, rows, JUDGED)
            better = after.summary(vocabulary(head))
            if (gain := _gain(before, after)) > GAIN and better.nats < USELESS * better.uniform:
                found.append((gain, repair, after))
    finally:
        head.load(dict(tensors))
    if not found:
        return None
    gain, repair, after = max(found, key=lambda entry: entry[0])
    shares = [float(judged.right.float().mean()) for judged in (before, after)]
    return Finding(
        repair.code,
        repair.what,
        str(spec.source),
        f"no repair helps; this one wins {gain:.2f} nats per token",
        f"the first draft is right at {shares[0]:.1%} of positions, and repaired at {shares[1]:.1%}",
        repair.fix,
    )


def _gain(before: Judged, after: Judged) -> float:
    """Nats per token that a repair wins over the tokens that both can predict; 0 where it may be chance."""
    nats = before.nats - after.nats
    won = nats[~nats.isnan()]
    if len(won) < 2:
        won = after.right.float() - before.right.float()  # another draft vocabulary: nothing to compare but hits
    error = float(won.std()) / len(won) ** 0.5
    mean = float(won.mean())
    return mean if mean > SIGMAS * error else 0.0


def repairs(spec: DraftSpec, tensors: Tensors) -> Iterator[Repair]:
    """Every damage that this kind of head can have."""
    joint = _joint(spec, tensors)
    if spec.kind == EAGLE3:
        yield from _feature_orders(spec, joint, tensors)
    else:
        yield Repair(
            "halves-swapped",
            f"the halves of {joint} are exchanged: it joins embedding and hidden state in the other order",
            "exchange its column halves; conversion tools disagree about the order (MiMo reads [hidden, embedding])",
            lambda: {joint: torch.cat(tensors[joint].chunk(2, dim=1)[::-1], dim=1)},
        )
    yield from _stacked(spec, tensors)
    if D2T in tensors:
        yield from _maps(tensors[D2T])


def _joint(spec: DraftSpec, tensors: Tensors) -> str:
    if spec.kind != MTP:
        return FC
    from .mtp_names import layer_names

    return layer_names(spec)[0].frame["eh_proj"]


def _feature_orders(spec: DraftSpec, joint: str, tensors: Tensors) -> Iterator[Repair]:
    if not 1 < spec.aux_count <= MOST_FEATURES:
        return
    for order in permutations(range(spec.aux_count)):
        if list(order) == sorted(order):
            continue

        def made(order: tuple[int, ...] = order) -> dict[str, Tensor]:
            blocks = tensors[joint].chunk(spec.aux_count, dim=1)
            return {joint: torch.cat([blocks[number] for number in order], dim=1)}

        yield Repair(
            "features-swapped",
            f"the column blocks of {joint} are in the order {list(order)} of the target's layers",
            "put the blocks into the order of the layers, lowest first",
            made,
        )


def _stacked(spec: DraftSpec, tensors: Tensors) -> Iterator[Repair]:
    """C2: q, k and v stacked one after another were read as [queries, key, value] of every group, or the reverse."""
    stems = _qkv_stems(spec, tensors)
    if not stems:
        return
    groups, size = spec.num_key_value_heads, spec.head_dim
    per_group = tensors[stems[0] + "k_proj.weight"].shape[0] // groups if groups else 0
    if per_group != size:
        return
    for read, what in (
        (_as_grouped, "q, k and v were stacked head after head where Megatron reads one group after another"),
        (_as_stacked, "q, k and v were cut one after another out of a tensor that holds one group after another"),
    ):

        def made(read: Callable[[list[Tensor], int], list[Tensor]] = read) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for stem in stems:
                for kind in ("weight", "bias"):
                    names = [f"{stem}{part}_proj.{kind}" for part in "qkv"]
                    if all(name in tensors for name in names):
                        found |= dict(zip(names, read([tensors[name] for name in names], groups), strict=True))
            return found

        yield Repair("qkv-stacked", what, "arrange linear_qkv as [queries, key, value] of every key-value group", made)


def _qkv_stems(spec: DraftSpec, tensors: Tensors) -> list[str]:
    """Prefixes of attentions with q, k and v of the plain shape (no gate in q)."""
    ends = "q_proj.weight"
    stems = [name.removesuffix(ends) for name in tensors if name.endswith(ends)]
    plain = spec.num_attention_heads * spec.head_dim
    return [stem for stem in stems if stem + "k_proj.weight" in tensors and tensors[stem + ends].shape[0] == plain]


def _as_grouped(parts: list[Tensor], groups: int) -> list[Tensor]:
    """Undo: what looks like the groups' rows, laid out group after group, is the plain stack."""
    rest = parts[0].shape[1:]
    by_group = torch.cat([part.reshape(groups, -1, *rest) for part in parts], dim=1).reshape(-1, *rest)
    return list(torch.split(by_group, [len(part) for part in parts]))


def _as_stacked(parts: list[Tensor], groups: int) -> list[Tensor]:
    """Undo: what looks like the plain stack holds one group after another."""
    rest = parts[0].shape[1:]
    stack = torch.cat(parts).reshape(groups, -1, *rest)
    cuts = [len(part) // groups for part in parts]
    return [part.reshape(-1, *rest) for part in torch.split(stack, cuts, dim=1)]


def _maps(offsets: Tensor) -> Iterator[Repair]:
    own = torch.arange(len(offsets), device=offsets.device)
    targets = offsets + own
    ordered = targets.sort().values
    if not torch.equal(ordered, targets):
        yield Repair(
            "d2t-shuffled",
            "d2t is out of order: draft ids stand for other target ids than the lm_head's rows",
            "draft ids are the kept target ids in rising order; build d2t again from t2d",
            lambda: {D2T: ordered - own},
        )
