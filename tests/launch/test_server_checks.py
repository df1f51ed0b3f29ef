"""Checks of the server and of the head that it is given: what passes, and what fails with which code."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpt_tools
from tests.conftest import Tiny
from tests.drafts import heads

from .world import World

SERVER_CASES = [
    ("--sglang-enable-ep-moe", "server-flag-unknown"),
    ("--sglang-specualtive-num-steps 3", "server-flag-unknown"),
    ("--sglang-tp-size 8", "server-flag-unknown"),  # slime sets it itself
    ("--speculative-num-steps 3", "server-flag-prefix"),
    ("--sglang-dp-size 2", "server-parallel"),
    ("--rollout-num-gpus-per-engine 3", "server-parallel"),
    ("--rollout-num-gpus-per-engine 4 --sglang-enable-dp-attention --sglang-dp-size 3", "server-parallel"),
]


@pytest.mark.parametrize(("more", "code"), SERVER_CASES)
def test_flags_that_the_server_does_not_take(world: World, more: str, code: str) -> None:
    assert code in world.errors(more)


def test_flags_that_the_server_takes(world: World) -> None:
    assert world.errors("--sglang-cuda-graph-max-bs 8 --sglang-config x.yaml --sglang-mem-fraction-static 0.7") == []
    assert world.errors("--rollout-num-gpus-per-engine 4 --sglang-enable-dp-attention --sglang-dp-size 2") == []


def test_a_flag_under_its_later_name(world: World) -> None:
    (finding,) = [
        f for f in world.run("--sglang-cuda-graph-max-bs 8", sglang_version="0.5.23").findings if f.severity == "error"
    ]
    assert (finding.code, finding.expected) == ("server-flag-renamed", "--sglang-cuda-graph-max-bs-decode")


def test_a_flag_under_its_earlier_name(world: World) -> None:
    """A script for a later release on an earlier server."""
    (finding,) = [
        f
        for f in world.run("--sglang-dsa-decode-backend fa3", sglang_version="0.5.9").findings
        if f.severity == "error"
    ]
    assert (finding.code, finding.expected) == ("server-flag-renamed", "--sglang-nsa-decode-backend")


def test_a_flag_that_a_release_dropped(world: World) -> None:
    assert world.errors("--sglang-torchao-config int4wo", sglang_version="0.5.23") == ["server-flag-removed"]
    assert world.errors("--sglang-torchao-config int4wo", sglang_version="0.5.15.post1") == []


def test_counters_that_slime_does_not_find(world: World) -> None:
    assert "server-metrics" in world.warnings()
    assert "server-metrics" not in world.warnings(sglang_version="0.5.9")


def test_a_release_between_two_tables(world: World) -> None:
    assert "server-version-between" in world.notes(sglang_version="0.5.16")
    assert "server-version-between" not in world.notes()


# --- speculation (L6)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((3, 1, 4), ""), ((3, 1, 3), "spec-args"), ((3, 2, 5), ""), ((0, 1, 1), "spec-args")],
)
def test_the_three_numbers(world: World, numbers: tuple[int, int, int], code: str) -> None:
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    more = " ".join(f"--sglang-speculative-{name} {value}" for name, value in zip(names, numbers, strict=True))
    assert world.errors(more) == ([code] if code else [])
    if numbers == (3, 1, 3):
        (finding,) = [f for f in world.run(more).findings if f.code == code]
        assert finding.expected.startswith("4 draft tokens")


def test_a_layer_that_serves_several_steps_is_noted(world: World) -> None:
    assert "mtp-layer-reused" in world.notes()
    assert "mtp-layer-reused" not in world.notes(
        "--sglang-speculative-num-steps 1 --sglang-speculative-num-draft-tokens 2"
    )


def test_all_three_numbers_or_none(world: World) -> None:
    assert world.without("--sglang-speculative-num-steps", "server").errors() == ["spec-args"]
    assert world.without("--sglang-speculative-eagle-topk", "server").errors() == ["spec-args"]
    world.server = "--sglang-speculative-algorithm EAGLE"
    assert world.errors() == []
    assert "spec-automatic" in world.notes()


def test_an_algorithm_that_is_none(world: World) -> None:
    assert world.errors("--sglang-speculative-algorithm EGALE") == ["algorithm-unknown"]
    assert world.errors("--sglang-speculative-algorithm nextn") == []
    assert world.without("--sglang-speculative-algorithm", "server").errors() == ["speculation-off"]


def test_a_target_without_layers_needs_a_head(world: World, tiny: Tiny) -> None:
    assert world.errors("--sglang-speculative-algorithm EAGLE3") == ["draft-needed"]
    assert (
        ckpt_tools.preflight(target=tiny("llama"), server_args="--tp-size 1 --speculative-algorithm EAGLE").result.fits
        is False
    )


# --- a head of its own (L8)


SEPARATE = "--tp-size 2 --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1"


def test_a_head_that_fits(tmp_path: Path) -> None:
    target, head = heads.target(tmp_path / "target"), heads.eagle3(tmp_path / "head")
    outcome = ckpt_tools.preflight(target=target, draft=head, server_args=SEPARATE)
    assert [str(f) for f in outcome.findings if f.severity == "error"] == []
    assert outcome.result.memory is None  # the target's config names no dtype


def test_a_head_of_another_width(tmp_path: Path) -> None:
    """Plain words with both numbers, and not a matrix error of the first request."""
    target, head = (
        heads.target(tmp_path / "target"),
        heads.eagle(tmp_path / "head", hidden_size=6, num_attention_heads=3),
    )
    server = SEPARATE.replace("EAGLE3", "EAGLE")
    outcome = ckpt_tools.preflight(target=target, server_args=f"{server} --speculative-draft-model-path {head}")
    assert outcome.result.draft == str(head)
    (finding,) = [f for f in outcome.findings if f.code == "hidden-size"]
    assert ("16" in finding.expected, "12" in finding.actual) == (True, True)


def test_a_head_with_another_tokenizer(tmp_path: Path) -> None:
    target, head = heads.target(tmp_path / "target"), heads.eagle3(tmp_path / "head")
    heads.write_tokenizer(target, 20)
    heads.write_tokenizer(head, 20, t7="other")
    found = {f.code for f in ckpt_tools.preflight(target=target, draft=head, server_args=SEPARATE).findings}
    assert any("tokenizer" in code for code in found)


def test_the_memory_of_a_head_of_its_own(tmp_path: Path) -> None:
    target, head = heads.target(tmp_path / "target", torch_dtype="bfloat16"), heads.eagle3(tmp_path / "head")
    memory = ckpt_tools.preflight(target=target, draft=head, server_args=SEPARATE).result.memory
    assert memory is not None
    data = sum(p.stat().st_size - 8 - int.from_bytes(p.read_bytes()[:8], "little") for p in head.glob("*.safetensors"))
    assert memory.head == data
    assert memory.head_cache_per_token == 2 * 1 * 2 * 2  # one of two groups, head size 2, bfloat16
    assert memory.cache_per_token == 12 * memory.head_cache_per_token


def test_a_draft_path_that_the_server_does_not_need(tmp_path: Path, tiny: Tiny) -> None:
    target = tiny("glm4_moe", mtp=1)
    server = f"--tp-size 1 --speculative-algorithm EAGLE --speculative-draft-model-path {target}"
    outcome = ckpt_tools.preflight(target=target, server_args=server)
    assert "draft-path-superfluous" in [f.code for f in outcome.findings]
    assert outcome.result.fits
