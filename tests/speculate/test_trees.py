"""Trees of drafts: grown as a plain search says, seen by the target branch by branch, lossless, and worth more than a chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import UsageProblem
from ckpt_tools.speculate.build import build_head
from ckpt_tools.speculate.chain import Chain
from ckpt_tools.speculate.counters import Counters
from ckpt_tools.speculate.decode import Limits, plain, speculative
from ckpt_tools.speculate.draft import ROOT, Draft
from ckpt_tools.speculate.head import Head
from ckpt_tools.speculate.preconditions import check_pair
from ckpt_tools.speculate.target import Run, Target, load_target
from ckpt_tools.speculate.tree import TreeShape, at_depth, grow, shape_of
from ckpt_tools.speculate.verification import greedy
from tests.conftest import Command

from ..tune.heads import pair
from . import worlds
from .conftest import Clockwork, SmolLM2

TREE = Draft([7, 3, 9, 3, 4, 1], None, (ROOT, ROOT, 0, 0, 1, 4))
SHAPES = [TreeShape(1, 3, 3), TreeShape(2, 2, 5), TreeShape(3, 2, 7), TreeShape(4, 3, 12), TreeShape(3, 5, 55)]
WIDE = {
    "mtp": TreeShape(3, 40, 600),
    "eagle": TreeShape(3, 40, 600),
    "eagle3": TreeShape(3, 12, 200),
}  # random heads are right at times


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Pairs whose attention matters: a wrong key or mask changes what they say."""
    return {kind: pair(kind, tmp_path_factory.mktemp(kind)) for kind in ("mtp", "mtp2", "eagle", "eagle3")}


def opened(folders: tuple[Path, Path]) -> tuple[Target, Head]:
    target = load_target(folders[0])
    return target, build_head(open_draft(folders[1]), target)


def started(target: Target, head: Head, ids: list[int]) -> Chain:
    """The head's side after a prompt whose next token is the last of `ids`."""
    chain = Chain(head)
    with torch.inference_mode():
        chain.extend(Run(target, head.boundaries).feed(ids[:-1])[1], ids[1:])
    return chain


def searched(target: Target, head: Head, ids: list[int], shape: TreeShape) -> dict[tuple[int, ...], float]:
    """The drafts as texts with their scores, by a search that keeps whole lanes and shares nothing with `grow`.

    A lane is (text, score, the rows that stand in it); every step reads the prompt again, without a cache.
    """
    features = Run(target, head.boundaries).feed(ids[:-1])[1]
    lanes: list[tuple[tuple[int, ...], float, list[tuple[Tensor, int]]]] = [((), 1.0, [])]
    scored: dict[tuple[int, ...], float] = {}
    for step in range(shape.steps):
        grown, after = [], []
        for number, (text, score, rows) in enumerate(lanes):
            out = one_lane(head, features, ids[1:], rows)
            after.append(out.hidden[:, -1:])
            probs = torch.softmax(head.logits(out.features[:, -1])[0].float(), -1)
            best = probs.topk(shape.topk)
            for p, i in zip(best.values.tolist(), best.indices, strict=True):
                grown.append(((*text, int(head.target_ids(i))), score * p, number))
        scored |= {text: score for text, score, _ in grown}
        grown.sort(key=lambda one: -one[1])
        # The lane of place k keeps the rows that stood in place k, whoever is in it now.
        old = [rows for _, _, rows in lanes] if step else [[] for _ in range(shape.topk)]
        lanes = [
            (text, score, [*old[place], (after[parent], text[-1])])
            for place, (text, score, parent) in enumerate(grown[: shape.topk])
        ]
    best_first = sorted(scored.items(), key=lambda one: -one[1])
    return dict(best_first[: shape.drafts])


def one_lane(head: Head, features: Tensor, tokens: list[int], rows: list[tuple[Tensor, int]]) -> Any:
    """The head over the certain rows and then one lane's, each a pass of its own over a fresh cache."""
    cache, count = head.new_cache(), len(tokens)
    seen = torch.zeros(1, 1, count, count).masked_fill(torch.ones(count, count).triu(1).bool(), -1e30)
    out = head(features, head.embed(torch.tensor([tokens])), torch.arange(count)[None], cache, seen)
    for number, (hidden, token) in enumerate(rows):
        mask = torch.zeros(1, 1, 1, count + number + 1)
        out = head(hidden, head.embed(torch.tensor([[token]])), torch.tensor([[count + number]]), cache, mask)
    return out


def texts_of(draft: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for number, token in enumerate(draft.tokens):
        parent = draft.parent(number)
        found.append((() if parent == ROOT else found[parent]) + (token,))
    return found


@pytest.mark.parametrize("kind", ["mtp", "eagle", "eagle3"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tree_holds_what_a_plain_search_finds(
    kind: str, shape: TreeShape, loud: dict[str, tuple[Path, Path]]
) -> None:
    target, head = opened(loud[kind])
    ids = [5, 9, 11, 3, 22, 8]
    with torch.inference_mode():
        draft, wanted = grow(started(target, head, ids), shape), searched(target, head, ids, shape)
    assert set(texts_of(draft)) == set(wanted) and len(draft.tokens) == len(wanted) == shape.drafts
    assert max(draft.depths()) <= shape.steps
    assert all(parent < number for number, parent in enumerate(draft.parents))


def test_the_target_sees_each_branch_alone(loud: dict[str, tuple[Path, Path]]) -> None:
    """States of the tree's tokens are those of each branch fed by itself, and so is what follows a kept branch."""
    target = load_target(loud["eagle3"][0])
    prompt = [5, 9, 11]
    run = Run(target)
    run.feed(prompt)
    together, _ = run.feed_draft(2, TREE)
    for number, text in enumerate(texts_of(TREE)):
        alone, _ = Run(target).feed([*prompt, 2, *text])
        torch.testing.assert_close(together[0, number + 1], alone[0, -1], atol=2e-5, rtol=0)
    run.keep(TREE, [1, 4, 5])
    after, _ = run.feed([8, 6])
    alone, _ = Run(target).feed([*prompt, 2, 3, 4, 1, 8, 6])
    torch.testing.assert_close(after[0], alone[0, -2:], atol=2e-5, rtol=0)
    assert run.length == 9


@pytest.mark.parametrize(
    ("says", "path", "emitted"),
    [
        ([3, 0, 4, 0, 0, 1, 5], [1, 4, 5], [3, 4, 1, 5]),
        ([7, 3, 0, 0, 6, 0, 0], [0, 3], [7, 3, 6]),
        ([8, 3, 0, 0, 0, 0, 0], [], [8]),
    ],
)
def test_the_greedy_way_through_a_tree(says: list[int], path: list[int], emitted: list[int]) -> None:
    """`says[0]` is the target's token at the root, `says[i + 1]` the one after draft i."""
    assert greedy(TREE, torch.nn.functional.one_hot(torch.tensor(says), 12).float()) == (path, emitted)


@pytest.mark.parametrize("kind", ["mtp", "eagle", "eagle3"])
@pytest.mark.parametrize("shape", [*SHAPES, None], ids=str)
def test_trees_are_lossless(kind: str, shape: TreeShape | None, loud: dict[str, tuple[Path, Path]]) -> None:
    wide, shape = shape is None, shape or WIDE[kind]
    target, head = opened(loud[kind])
    counters = Counters(shape.steps, drafts=shape.drafts)
    for prompt in ([5, 9, 11, 3], [22, 8]):
        alone = plain(target, prompt, Limits(16))
        assert speculative(target, head, prompt, Limits(16), counters, shape=shape).tokens == alone.tokens
    assert counters.proposed == counters.verifications * shape.drafts
    assert counters.accepted > 2 or not wide


def test_the_head_is_fed_the_states_of_the_kept_branch(
    loud: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a chain was extended by, put together, is what the target says of the whole text."""
    target, head = opened(loud["mtp"])
    fed: list[Tensor] = []
    extend = Chain.extend

    def watched(self: Chain, features: Tensor, tokens: Any) -> None:
        fed.append(features.clone())
        extend(self, features, tokens)

    monkeypatch.setattr(Chain, "extend", watched)
    counters, prompt = Counters(3, drafts=WIDE["mtp"].drafts), [5, 9, 11, 3]
    text = speculative(target, head, prompt, Limits(24), counters, shape=WIDE["mtp"]).tokens
    assert counters.accepted > 2
    together = torch.cat(fed, dim=1)
    whole, _ = Run(target).feed([*prompt, *text])
    torch.testing.assert_close(together, whole[:, : together.shape[1]], atol=2e-5, rtol=0)


@pytest.mark.parametrize("broken", [1, 2])
def test_a_head_that_says_no_number(
    broken: int, loud: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overflow in float16, or a damaged head: what it says from step `broken` on is worth nothing; the text stays right."""
    target, head = opened(loud["eagle"])
    lanes = Chain.lanes

    def overflowing(self: Chain, hidden: Tensor, tokens: Any, step: int) -> Any:
        row = lanes(self, hidden, tokens, step)
        return row._replace(features=row.features * float("nan")) if step >= broken else row

    monkeypatch.setattr(Chain, "lanes", overflowing)
    shape = TreeShape(3, 2, 3)
    found = speculative(target, head, [5, 9, 11, 3], Limits(8), Counters(3, drafts=3), shape=shape)
    assert found.tokens == plain(target, [5, 9, 11, 3], Limits(8)).tokens


@pytest.mark.real
@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_tree_accepts_more_than_a_chain(kind: str, smollm2: SmolLM2) -> None:
    """The real target and heads: a second guess for every token is sometimes the right one."""
    target, head, found = smollm2.of(kind), smollm2.head(kind), []
    texts = [plain(target, prompt, Limits(24, {2})).tokens for prompt in smollm2.prompts[:2]]
    for shape in (TreeShape(3, 1, 3), TreeShape(3, 4, 16)):
        found.append(Counters(3, drafts=shape.drafts))
        for prompt, text in zip(smollm2.prompts, texts, strict=False):
            assert speculative(target, head, prompt, Limits(24, {2}), found[-1], shape=shape).tokens == text
    assert found[1].accept_length > found[0].accept_length + 0.1


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "drafts"), [(3, 1, None, 3), (3, 1, 4, 3), (1, 4, 5, 4), (3, 2, 2, 1), (3, 2, 11, 10)]
)
def test_shapes(steps: int, topk: int, tokens: int | None, drafts: int) -> None:
    assert shape_of(steps, topk, tokens) == TreeShape(steps, topk, drafts)


@pytest.mark.parametrize(("steps", "topk", "tokens"), [(3, 1, 5), (3, 2, None), (3, 2, 1), (3, 2, 12), (1, 4, 6)])
def test_shapes_that_do_not_go_together(steps: int, topk: int, tokens: int | None) -> None:
    with pytest.raises(UsageProblem) as caught:
        shape_of(steps, topk, tokens)
    assert [finding.code for finding in caught.value.findings] == ["tree-shape"]


def test_another_depth_of_the_same_tree() -> None:
    assert [at_depth(TreeShape(3, 2, 7), steps).drafts for steps in (1, 2, 3, 4)] == [2, 6, 7, 7]
    assert at_depth(TreeShape(3, 1, 3), 2) == TreeShape(2, 1, 2)


def smoke_words(folder: Path, target: Path, draft: Path, *more: object) -> tuple[object, ...]:
    prompts = worlds.write_prompts(folder / "prompts.json", worlds.START)
    return ("smoke", target, draft, "--prompts", prompts, "--max-new-tokens", 16, "--json", *more)


def test_the_command_drafts_trees(clockwork: Clockwork, command: Command, tmp_path: Path) -> None:
    target = clockwork("llama")
    words = smoke_words(tmp_path, target, worlds.eagle(tmp_path / "head", target, noise=2.5), "--steps", 3)
    chain = command(*words, "--depths", 0, code=None).result
    tree = command(*words, "--topk", 2, "--draft-tokens", 8, "--depths", 2, code=None).result
    assert tree["lossless"] is True
    assert (tree["setting"]["topk"], tree["setting"]["num_draft_tokens"]) == (2, 8)
    assert (chain["setting"]["topk"], chain["setting"]["num_draft_tokens"]) == (1, None)
    assert tree["acceptance"]["proposed"] == 7 * tree["acceptance"]["verifications"]
    assert tree["acceptance"]["accept_length"] > chain["acceptance"]["accept_length"]
    assert [depth["steps"] for depth in tree["timing"]["depths"]] == [1, 2] and len(tree["timing"]["verify"]) == 3


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("mtp2", ("--topk", 2, "--draft-tokens", 4), "tree-not-run"),
        ("eagle3", ("--topk", 2, "--draft-tokens", 4, "--temperature", 1), "tree-exact"),
        ("eagle3", ("--topk", 2), "tree-shape"),
    ],
)
def test_what_is_not_drafted_as_a_tree(
    kind: str,
    words: tuple[object, ...],
    code: str,
    loud: dict[str, tuple[Path, Path]],
    command: Command,
    tmp_path: Path,
) -> None:
    steps = ("--steps", 2, "--depths", 0)
    assert code in command(*smoke_words(tmp_path, *loud[kind], *steps, *words), code=None).codes


def test_a_tree_wider_than_the_draft_vocabulary(loud: dict[str, tuple[Path, Path]]) -> None:
    target, head = opened(loud["eagle3"])
    words = head.logits(torch.zeros(1, head.hidden_size)).shape[-1]
    check_pair(target, head, TreeShape(2, words, words))
    with pytest.raises(UsageProblem) as caught:
        check_pair(target, head, TreeShape(2, words + 1, words + 1))
    assert [finding.code for finding in caught.value.findings] == ["tree-shape"]


def test_a_target_whose_past_has_no_branches(clockwork: Clockwork, command: Command, tmp_path: Path) -> None:
    folder = clockwork("qwen3_next", layers=4, mtp=1)
    ran = command(*smoke_words(tmp_path, folder, folder, "--topk", 2, "--draft-tokens", 4), code=None)
    assert "tree-not-run" in ran.codes
