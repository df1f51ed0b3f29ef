"""The launch scripts that slime publishes: they pass where they would run, and fail where they would not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpt_tools
from ckpt_tools.errors import Finding
from ckpt_tools.families.arguments import padded_vocabulary
from tests.golden import slime_args

from .checkpoints import write_stored, write_target
from .slime import PUBLISHED, Published, config_of, write

SLIMES_IMAGE = "0.5.15.post1"  # the SGLang release of slime's container (docker/Dockerfile)
GDN = {"gdn": "slime"}
DSA = {"dsa": "slime"}
VARIANTS = {"qwen3-next": GDN, "qwen3.5-27B": GDN, "glm5.2": DSA}
# One node of 8 GPUs cannot hold PP 2 x EP 8: megatron-core refuses it, see test_parallel_oracle.
TOO_FEW_GPUS = ("glm4.7-flash",)


def stored_vocabulary(run: Published) -> int:
    flags, words = slime_args()[run.model].flags, run.parallel.split()
    tp = int(words[words.index("--tensor-model-parallel-size") + 1])
    return padded_vocabulary(
        int(str(flags["--vocab-size"])), int(str(flags.get("--make-vocab-size-divisible-by", 128))), tp
    )


def errors(script: Path, version: str = SLIMES_IMAGE, **options: str) -> list[Finding]:
    outcome = ckpt_tools.preflight(script=script, sglang_version=version, variables={"MASTER_ADDR": "node0"}, **options)
    found = [finding for finding in outcome.findings if finding.severity == "error"]
    assert outcome.result.fits == (not found)
    return found


def codes(script: Path, version: str = SLIMES_IMAGE, **options: str) -> set[str]:
    return {finding.code for finding in errors(script, version, **options)}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every script with its target and its torch-dist checkpoint, which has the MTP layer."""
    written = {}
    for run in PUBLISHED.values():
        folder = tmp_path_factory.mktemp(run.name)
        config = config_of(run)
        target = write_target(folder / "hf", config)
        stored = write_stored(folder / "td", config, 1, stored_vocabulary(run), VARIANTS.get(run.name))
        written[run.name] = write(run, folder, target, stored)
    return written


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_script_passes(name: str, scripts: dict[str, Path]) -> None:
    nodes = "--actor-num-nodes 2" if name in TOO_FEW_GPUS else ""
    outcome = ckpt_tools.preflight(script=scripts[name], sglang_version=SLIMES_IMAGE, args=nodes)
    assert [f"{finding}" for finding in outcome.findings if finding.severity == "error"] == []
    assert outcome.result.fits
    assert outcome.result.mtp_layers == 1
    done = {check.name for check in outcome.result.checks if check.outcome == "ok"}
    assert {
        "script",
        "target",
        "torch-dist",
        "tracker file",
        "same model",
        "model flags",
        "padded vocabulary",
        "MTP layers",
        "tensor parallel",
        "pipeline parallel",
        "world size",
        "server flags",
        "server parallel",
        "speculation",
        "draft head",
    } <= done


def test_flash_asks_for_more_ranks_than_its_node_has(scripts: dict[str, Path]) -> None:
    (finding,) = errors(scripts["glm4.7-flash"])
    assert (finding.code, finding.actual) == ("world-not-divisible", "8 GPUs")
    assert finding.expected == "a multiple of 16 (expert TP 1 x EP 8 x PP 2)"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_checkpoint_without_the_layer(name: str, scripts: dict[str, Path], tmp_path: Path) -> None:
    """Only the scripts that train the layer need it in torch-dist; the others serve that of the Hugging Face folder."""
    run = PUBLISHED[name]
    bare = write_stored(tmp_path / "td", config_of(run), 0, stored_vocabulary(run), VARIANTS.get(name))
    trains = "--enable-mtp-training" in run.mtp
    found = codes(scripts[name], args="--actor-num-nodes 32", torch_dist=str(bare))
    assert found == ({"mtp-count"} if trains else set())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_target_without_the_layer_cannot_draft(name: str, scripts: dict[str, Path], tmp_path: Path) -> None:
    target = write_target(tmp_path / "hf", config_of(PUBLISHED[name]), mtp=0)
    found = codes(scripts[name], args="--actor-num-nodes 32", target=str(target))
    assert "draft-needed" in found
    assert found <= {"draft-needed", "config-claims-mtp"}


CHANGES = (
    "--num-layers 3",
    "--hidden-size 8",
    "--num-attention-heads 1000",
    "--rotary-base 3",
    "--norm-epsilon 0.5",
    "--vocab-size 7",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_changed_flag_is_named(name: str, scripts: dict[str, Path]) -> None:
    found = errors(scripts[name], args=f"--actor-num-nodes 32 {' '.join(CHANGES)}")
    wrong = {finding.actual: finding.what for finding in found if finding.code == "flag-value"}
    assert wrong.keys() == set(CHANGES)
    assert all(change.partition(" ")[0] in what for change, what in wrong.items())


RENAMED_IN_0_5_23 = {
    "glm4.7-flash": {"--sglang-cuda-graph-max-bs"},
    "glm5.2": {"--sglang-nsa-decode-backend", "--sglang-nsa-prefill-backend", "--sglang-cuda-graph-max-bs"},
    "qwen3-next": {"--sglang-cuda-graph-bs"},
    "qwen3.5-27B": {"--sglang-mamba-scheduler-strategy"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_flags_that_a_later_server_has_renamed(name: str, scripts: dict[str, Path]) -> None:
    found = errors(scripts[name], "0.5.23", args="--actor-num-nodes 32")
    assert {finding.code for finding in found} <= {"server-flag-renamed"}
    assert {finding.actual.partition(" ")[0] for finding in found} == RENAMED_IN_0_5_23.get(name, set())


def test_the_memory_of_a_built_in_head(scripts: dict[str, Path]) -> None:
    """MiMo's layer: 2 x 4096 joint projection, attention, MLP and norms; 8 groups of 128 for keys and values."""
    memory = ckpt_tools.preflight(script=scripts["mimo-7B"], sglang_version=SLIMES_IMAGE).result.memory
    assert memory is not None
    h, ffn, kv = 4096, 11008, 1024
    attention = 2 * h * h + 2 * h * kv + (h + 2 * kv)
    weights = 2 * h * h + attention + 3 * h * ffn + 5 * h
    assert memory.head == 2 * weights
    assert (memory.ranks, memory.head_per_rank) == (1, memory.head)
    assert memory.head_cache_per_token == 2 * kv * 2
    assert memory.cache_per_token == 36 * memory.head_cache_per_token


def test_the_cache_of_latent_attention_is_whole_on_every_rank_and_fp8_halves_it(scripts: dict[str, Path]) -> None:
    memory = ckpt_tools.preflight(script=scripts["glm5.2"], sglang_version=SLIMES_IMAGE).result.memory
    assert memory is not None
    assert memory.head_cache_per_token == 512 + 64
    assert memory.cache_per_token == 78 * (512 + 64)
