"""Every code that docs/preflight.md lists: something that fails with it, and its counterpart that passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckpt_tools
from ckpt_tools.errors import CkptError
from tests.checkpoints import changed_config
from tests.conftest import Command, Tiny
from tests.drafts import heads
from tests.golden import load

from .checkpoints import write_stored, write_target
from .slime import PUBLISHED, config_of, write
from .world import SLIMES_IMAGE, World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "preflight.md"
Codes = tuple[set[str], set[str]]  # (of findings, names of checks that passed)
Try = Callable[["Bench"], Codes]


class Bench:
    """What a try works with."""

    def __init__(self, world: World, base: Path, tiny: Tiny, command: Command) -> None:
        self.world, self.base, self.tiny, self.command = world, base, tiny, command

    def run(self, more: str = "", **options: Any) -> Codes:
        return seen(lambda: self.world.run(more, **options))

    def bare(self, **options: Any) -> Codes:
        """Nothing but what is named."""
        return seen(lambda: ckpt_tools.preflight(**options))

    def without(self, flag: str, part: str = "model") -> Codes:
        return seen(self.world.without(flag, part).run)

    def file(self, name: str, text: str) -> Path:
        (self.base / name).write_text(text)
        return self.base / name

    def script(self, change: Callable[[str], str] = str) -> Codes:
        """slime's MiMo job, its text changed."""
        config = load("MiMo-7B").config
        target = write_target(self.base / "script-hf", config)
        stored = write_stored(self.base / "script-td", config, 1, 151808)
        path = write(PUBLISHED["mimo-7B"], self.base, target, stored)
        path.write_text(change(path.read_text()))
        return self.bare(script=path, sglang_version=SLIMES_IMAGE)

    def published(self, name: str, variants: dict[str, str] | None, args: str = "") -> Codes:
        run = PUBLISHED[name]
        config = config_of(run)
        vocab = config.get("text_config", config)["vocab_size"]
        target = write_target(self.base / "p-hf", config)
        stored = write_stored(self.base / "p-td", config, 1, vocab, variants)
        script = write(run, self.base, target, stored)
        return self.bare(script=script, sglang_version=SLIMES_IMAGE, args=args)

    def resumed(self, *more: str) -> Codes:
        """A run that goes on from a checkpoint with flat optimizer buffers."""
        config = load("MiMo-7B").config
        buffers = {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param": (1000,)}
        stored = write_stored(self.base / "r-td", config, 1, 151808, more=buffers)
        args = " ".join((f"--vocab-size 151680 --load {stored}", *more))
        return self.bare(target=write_target(self.base / "r-hf", config), torch_dist=stored, args=args)

    def change_config(self, **fields: Any) -> Codes:
        with changed_config(self.world.target) as config:
            config |= fields
        return self.run()

    def tokenizers(self, **other: str) -> Codes:
        heads.write_tokenizer(self.world.target, 20)
        heads.write_tokenizer(self.world.torch_dist / "release" / "hf", 20, **other)
        return self.run()

    def tracker(self, there: bool) -> Codes:
        if not there:
            (self.world.torch_dist / "latest_checkpointed_iteration.txt").unlink()
        return self.run()

    def index(self, text: str) -> Codes:
        target = self.tiny("mimo", heads=4, kv_heads=2, mtp=1, shards=2)
        if text:
            (target / "model.safetensors.index.json").write_text(text)
        return self.run(target=target)

    def glm(self, path: bool) -> Codes:
        target = self.tiny("glm4_moe", mtp=1)
        more = f" --speculative-draft-model-path {target}" if path else ""
        return self.bare(target=target, server_args=f"--tp-size 1 --speculative-algorithm EAGLE{more}")


def seen(run: Callable[[], Any]) -> Codes:
    """Codes of findings and of what is raised, and the checks that passed."""
    try:
        outcome = run()
    except CkptError as problem:
        return {finding.code for finding in problem.findings}, set()
    return {f.code for f in outcome.findings}, {c.name for c in outcome.result.checks if c.outcome == "ok"}


def default(bench: Bench) -> Codes:
    return bench.run()


NEWEST = {"sglang_version": "0.5.23"}
GDN, DSA = {"gdn": "slime"}, {"dsa": "slime"}
STAGES = "--decoder-first-pipeline-num-layers 15 --decoder-last-pipeline-num-layers 15"
# code: (what fails with it, what passes instead, the check that must have passed then; "" for remarks without a check).
CASES: dict[str, tuple[Try, Try, str]] = {
    "script-invalid": (lambda b: b.script(lambda t: t + "\n(("), lambda b: b.script(), "script"),
    "script-doubt": (lambda b: b.script(lambda t: "source /not/there.sh\n" + t), lambda b: b.script(), "script"),
    "no-flags": (lambda b: b.script(lambda t: "echo hello\n"), lambda b: b.script(), "script"),
    "flags-unused": (
        lambda b: b.script(lambda t: t.replace("--colocate \\\n", "--colocate\n")),
        lambda b: b.script(),
        "script",
    ),
    "flag-unresolved": (lambda b: b.run("--num-layers $LAYERS"), lambda b: b.run(), "model flags"),
    "flag-malformed": (lambda b: b.run("--num-layers many"), default, "model flags"),
    "input-not-found": (
        lambda b: b.run("--hf-checkpoint /no/model", target=None),
        lambda b: b.run(f"--hf-checkpoint {b.world.target}", target=None),
        "target",
    ),
    "not-torch-dist": (
        lambda b: b.run(f"--ref-load {b.world.target}", torch_dist=None),
        lambda b: b.run(f"--ref-load {b.world.torch_dist}", torch_dist=None),
        "torch-dist",
    ),
    "index-invalid": (lambda b: b.index('{"weight_map": []}'), lambda b: b.index(""), "target"),
    "tracker-missing": (lambda b: b.tracker(False), lambda b: b.tracker(True), "tracker file"),
    "iteration-directory": (
        lambda b: (b.tracker(False), b.run(torch_dist=b.world.torch_dist / "release"))[1],
        lambda b: b.tracker(True),
        "tracker file",
    ),
    "other-model": (
        lambda b: b.run(target=b.tiny("mimo", heads=4, kv_heads=2, mtp=1, ffn=64)),
        lambda b: b.run(target=b.tiny("mimo", heads=4, kv_heads=2, mtp=1)),
        "same model",
    ),
    "tokenizer-differs": (lambda b: b.tokenizers(t7="other"), lambda b: b.tokenizers(), "same model"),
    "flag-missing": (lambda b: b.without("--swiglu"), default, "model flags"),
    "flag-value": (lambda b: b.run("--num-layers 3"), lambda b: b.run("--num-layers 2"), "model flags"),
    "flag-unexpected": (lambda b: b.run("--qk-layernorm"), default, "model flags"),
    "flag-quoted-twice": (
        lambda b: b.published("qwen3-next", GDN, """--moe-layer-freq "'([1]*48)'" """),
        lambda b: b.published("qwen3-next", GDN, '--moe-layer-freq "([1]*48)"'),
        "model flags",
    ),
    "padded-vocab": (lambda b: b.run("--make-vocab-size-divisible-by 80"), default, "padded vocabulary"),
    "vocab-too-small": (lambda b: b.run("--padded-vocab-size 39"), default, "padded vocabulary"),
    "padded-vocab-optimizer": (
        lambda b: b.resumed("--tensor-model-parallel-size 4"),
        lambda b: b.resumed("--tensor-model-parallel-size 2"),
        "padded vocabulary",
    ),
    "mtp-count": (lambda b: b.run("--mtp-num-layers 2"), default, "MTP layers"),
    "mtp-training-without-layers": (lambda b: b.without("--mtp-num-layers", "mtp"), default, "MTP layers"),
    "mtp-undeclared": (
        lambda b: b.change_config(num_nextn_predict_layers=0),
        lambda b: b.change_config(num_nextn_predict_layers=1),
        "target",
    ),
    "mtp-not-trained": (lambda b: b.without("--enable-mtp-training", "mtp"), default, "MTP layers"),
    "layer-layout": (
        lambda b: b.published("qwen3-next", None),
        lambda b: b.published("qwen3-next", GDN),
        "layer layout",
    ),
    "tp-not-divisible": (lambda b: b.run("--tensor-model-parallel-size 3"), default, "tensor parallel"),
    "pp-not-divisible": (
        lambda b: b.run("--pipeline-model-parallel-size 3"),
        lambda b: b.run("--pipeline-model-parallel-size 2"),
        "pipeline parallel",
    ),
    "vpp-not-divisible": (
        lambda b: b.run("--num-virtual-stages-per-pipeline-rank 3"),
        lambda b: b.run("--num-virtual-stages-per-pipeline-rank 2"),
        "pipeline parallel",
    ),
    "stage-without-indexer": (
        lambda b: b.published("glm5.2", DSA, STAGES),
        lambda b: b.published("glm5.2", DSA),
        "pipeline stages",
    ),
    "ep-not-divisible": (
        lambda b: b.published("qwen3-next", GDN, "--expert-model-parallel-size 3"),
        lambda b: b.published("qwen3-next", GDN),
        "expert parallel",
    ),
    "world-not-divisible": (lambda b: b.run("--context-parallel-size 3"), default, "world size"),
    "server-flag-unknown": (lambda b: b.run("--sglang-specualtive-num-steps 3"), default, "server flags"),
    "server-flag-removed": (
        lambda b: b.run("--sglang-torchao-config int4wo", **NEWEST),
        lambda b: b.run("--sglang-torchao-config int4wo"),
        "server flags",
    ),
    "server-flag-renamed": (
        lambda b: b.run("--sglang-cuda-graph-max-bs 8", **NEWEST),
        lambda b: b.run("--sglang-cuda-graph-max-bs 8"),
        "server flags",
    ),
    "server-flag-prefix": (lambda b: b.run("--speculative-num-steps 3"), default, "server flags"),
    "server-parallel": (lambda b: b.run("--rollout-num-gpus-per-engine 3"), default, "server parallel"),
    "server-metrics": (default, lambda b: b.run(sglang_version="0.5.9"), "server metrics"),
    "server-version-between": (lambda b: b.run(sglang_version="0.5.16"), default, ""),
    "speculation-off": (lambda b: b.without("--sglang-speculative-algorithm", "server"), default, "speculation"),
    "algorithm-unknown": (lambda b: b.run("--sglang-speculative-algorithm EGALE"), default, "speculation"),
    "spec-args": (lambda b: b.run("--sglang-speculative-num-draft-tokens 3"), default, "speculation"),
    "spec-automatic": (
        lambda b: seen(World(**{**b.world.__dict__, "server": "--sglang-speculative-algorithm EAGLE"}).run),
        default,
        "speculation",
    ),
    "mtp-layer-reused": (
        default,
        lambda b: b.run("--sglang-speculative-num-steps 1 --sglang-speculative-num-draft-tokens 2"),
        "speculation",
    ),
    "draft-needed": (lambda b: b.run("--sglang-speculative-algorithm EAGLE3"), default, "draft head"),
    "draft-path-superfluous": (lambda b: b.glm(True), lambda b: b.glm(False), "draft head"),
    "preflight-config": (
        lambda b: b.run(config=b.file("job.yaml", "scirpt: x")),
        lambda b: b.run(config=b.file("job.yaml", "sglang_version: 0.5.9")),
        "target",
    ),
    "config-unreadable": (
        lambda b: b.run(config=b.base / "no.yaml"),
        lambda b: b.run(config=b.file("job.yaml", "draft: null")),
        "target",
    ),
    "arguments-unreadable": (lambda b: b.run("--load 'a"), lambda b: b.run("--save 'a b'"), "target"),
    "script-unreadable": (lambda b: b.bare(script=b.base / "no.sh"), lambda b: b.script(), "script"),
    "server-version": (lambda b: b.run(sglang_version="0.1"), default, "server flags"),
    "nothing-to-check": (lambda b: b.bare(), default, "target"),
}


def documented() -> set[str]:
    """The codes that the page's table lists."""
    page = PAGE.read_text().partition("## What is found")[2]
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    return {code for cell in cells for code in re.findall(r"`([a-z0-9-]+)`", cell)}


@pytest.fixture
def bench(world: World, tmp_path: Path, tiny: Tiny, command: Command) -> Bench:
    return Bench(world, tmp_path, tiny, command)


def test_the_table_is_complete() -> None:
    assert CASES.keys() == documented()


@pytest.mark.parametrize("code", CASES)
def test_it_fails(bench: Bench, code: str) -> None:
    assert code in CASES[code][0](bench)[0]


@pytest.mark.parametrize("code", CASES)
def test_it_passes(bench: Bench, code: str) -> None:
    _, passes, check = CASES[code]
    codes, passed = passes(bench)
    assert code not in codes
    assert not check or check in passed, "the check really ran"
