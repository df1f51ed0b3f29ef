"""Checks of flags and checkpoints: what passes, and what fails with which code. One tiny MiMo with an MTP layer, really
converted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.checkpoints import changed_config
from tests.conftest import Command, Tiny
from tests.drafts import heads

from .world import World


def test_a_job_that_fits(world: World) -> None:
    outcome = world.run()
    assert [str(f) for f in outcome.findings if f.severity == "error"] == []
    assert (outcome.result.fits, outcome.result.trainer, outcome.result.mtp_layers) == (True, "slime", 1)


# --- model flags

WRONG = [
    "--num-layers 3",
    "--hidden-size 64",
    "--ffn-hidden-size 49",
    "--num-attention-heads 8",
    "--num-query-groups 4",
    "--kv-channels 16",
    "--vocab-size 41",
    "--norm-epsilon 1e-06",
    "--rotary-base 10000",
    "--normalization LayerNorm",
]


@pytest.mark.parametrize("flag", WRONG)
def test_a_flag_with_another_value(world: World, flag: str) -> None:
    findings = [f for f in world.run(flag).findings if f.code == "flag-value"]
    assert any(flag.split()[0] in f.actual and flag.split()[1] in f.actual for f in findings)


ABSENT = [
    "--swiglu",
    "--num-layers",
    "--hidden-size",
    "--ffn-hidden-size",
    "--group-query-attention",
    "--use-rotary-position-embeddings",
    "--disable-bias-linear",
    "--add-qkv-bias",
    "--normalization",
    "--rotary-base",
    "--untie-embeddings-and-output-weights",
]


@pytest.mark.parametrize("flag", ABSENT)
def test_a_flag_that_is_not_given(world: World, flag: str) -> None:
    assert set(world.without(flag).errors()) <= {"flag-missing", "flag-value"}
    assert world.without(flag).errors()


def test_a_flag_that_equals_megatrons_default_may_be_left_out(world: World) -> None:
    assert world.without("--norm-epsilon").errors() == []  # 1e-5
    assert world.errors("--kv-channels 8") == []  # hidden size / heads


UNEXPECTED = [
    "--qk-layernorm",
    "--apply-layernorm-1p",
    "--num-experts 8",
    "--multi-latent-attention",
    "--rotary-percent 0.5",
    "--attention-output-gate",
    "--post-mlp-layernorm",
]


@pytest.mark.parametrize("flag", UNEXPECTED)
def test_a_flag_for_what_the_checkpoint_does_not_have(world: World, flag: str) -> None:
    assert "flag-unexpected" in world.errors(flag)


def test_a_misspelt_flag_is_recognised(world: World) -> None:
    world.model = world.model.replace("--add-qkv-bias", "--add-qkv-biases")
    (finding,) = [f for f in world.run().findings if f.code == "flag-missing"]
    assert "--add-qkv-biases is given" in finding.actual


def test_a_value_that_is_none(world: World) -> None:
    assert "flag-malformed" in world.errors("--num-layers many")
    assert "flag-malformed" in world.errors("--tensor-model-parallel-size 2 3")


# --- vocabulary (D1)


@pytest.mark.parametrize(
    ("vocab", "divisor", "tp", "rows"),
    [(1000, 128, 1, 1024), (1000, 128, 2, 1024), (1000, 128, 16, 2048), (1000, 1, 8, 1000), (151936, 128, 8, 152576)],
)
def test_the_rows_that_training_wants(world: World, vocab: int, divisor: int, tp: int, rows: int) -> None:
    more = f"--vocab-size {vocab} --make-vocab-size-divisible-by {divisor} --tensor-model-parallel-size {tp}"
    (finding,) = [f for f in world.run(more).findings if f.code in ("padded-vocab", "vocab-too-small")]
    assert (finding.expected, finding.actual) == (f"{rows} rows", "256 rows")


def test_another_padding_is_a_warning(world: World) -> None:
    """Megatron loads it exactly: test_vocabulary_oracle."""
    more = "--make-vocab-size-divisible-by 80"
    assert world.errors(more) == []
    assert "padded-vocab" in world.warnings(more)
    assert "padded-vocab" not in world.warnings()


def test_fewer_rows_than_tokens(world: World) -> None:
    assert "vocab-too-small" in world.errors("--vocab-size 300")
    assert world.errors("--padded-vocab-size 39") == ["vocab-too-small"]
    assert world.errors("--padded-vocab-size 40") == []


# --- MTP


def test_more_layers_than_are_stored(world: World) -> None:
    (finding,) = [f for f in world.run("--mtp-num-layers 2").findings if f.severity == "error"]
    assert (finding.code, finding.expected) == ("mtp-count", "2 MTP layers")
    assert finding.actual.startswith("1 in ")


def test_training_without_layers(world: World) -> None:
    world.mtp = "--enable-mtp-training"
    assert world.errors() == ["mtp-training-without-layers"]


def test_training_of_layers_that_the_checkpoint_lacks(world: World, tmp_path: Path, command: Command) -> None:
    command("convert", world.target, tmp_path / "bare", "--tp", 2, "--mtp", "drop")
    assert world.errors(torch_dist=tmp_path / "bare") == ["mtp-count"]
    world.mtp = ""
    assert world.errors(torch_dist=tmp_path / "bare") == []


def test_layers_that_stay_as_they_are_are_noted(world: World) -> None:
    world.mtp = ""
    assert "mtp-not-trained" in world.notes()
    assert "mtp-not-trained" not in World(world.target, world.torch_dist).notes()


def test_a_config_that_claims_a_layer(world: World) -> None:
    with changed_config(world.target) as config:
        config["num_nextn_predict_layers"] = 2
    assert "config-claims-mtp" in world.errors()
    with changed_config(world.target) as config:
        config["num_nextn_predict_layers"] = 0
    assert "mtp-undeclared" in world.warnings()


# --- checkpoints


def test_a_directory_without_its_tracker_file(world: World) -> None:
    (world.torch_dist / "latest_checkpointed_iteration.txt").unlink()
    assert world.errors() == ["tracker-missing"]
    assert "iteration-directory" in world.notes(torch_dist=world.torch_dist / "release")


def test_a_tracker_that_names_nothing(world: World) -> None:
    (world.torch_dist / "latest_checkpointed_iteration.txt").write_text("500")
    assert world.errors() == ["iteration-not-found"]


def test_a_missing_file_of_weights(world: World) -> None:
    next((world.torch_dist / "release").glob("*.distcp")).unlink()
    assert "shard-missing" in world.errors()


def test_a_checkpoint_of_another_model(world: World, tiny: Tiny) -> None:
    other = tiny("mimo", heads=4, kv_heads=2, mtp=1, ffn=64)
    (finding,) = [f for f in world.run(target=other).findings if f.code == "other-model"]
    assert finding.what == "target and torch-dist are not the same model: intermediate_size"
    assert ("64" in finding.expected, "48" in finding.actual) == (True, True)


def test_a_tokenizer_of_another_model(world: World) -> None:
    carried = world.torch_dist / "release" / "hf"
    heads.write_tokenizer(world.target, 20)
    heads.write_tokenizer(carried, 20, t7="other")
    assert "tokenizer-differs" in world.warnings()
    heads.write_tokenizer(carried, 20)
    assert "tokenizer-differs" not in world.warnings()


def test_a_shard_that_the_index_names(world: World, tiny: Tiny) -> None:
    target = tiny("mimo", heads=4, kv_heads=2, mtp=1, shards=2)
    assert world.errors(target=target) == []
    next(target.glob("*-00001-of-*.safetensors")).unlink()
    assert world.errors(target=target) == ["shard-missing"]


def test_a_folder_of_weights_is_no_torch_dist(world: World) -> None:
    world.options["torch_dist"] = None
    assert world.errors(f"--ref-load {world.target}") == ["not-torch-dist"]
    assert world.errors(f"--ref-load {world.torch_dist}") == []


def test_paths_of_the_script_that_are_not_there(world: World) -> None:
    world.options["target"] = world.options["torch_dist"] = None
    assert world.errors("--hf-checkpoint /no/model --ref-load /no/td")[:2] == ["input-not-found", "input-not-found"]


def test_a_run_that_has_begun_is_what_is_loaded(world: World, tmp_path: Path) -> None:
    """--load counts once it has a tracker file; before that, --ref-load."""
    world.options["torch_dist"] = None
    more = f"--load {tmp_path / 'run'} --ref-load {world.torch_dist}"
    assert world.run(more).result.torch_dist == str(world.torch_dist)
    shutil.copytree(world.torch_dist, tmp_path / "run")
    assert world.run(more).result.torch_dist == str(tmp_path / "run")


# --- parallel sizes

SIZE_CASES = [
    ("--tensor-model-parallel-size 3", "tp-not-divisible"),
    ("--pipeline-model-parallel-size 3", "pp-not-divisible"),
    ("--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 2", "pp-not-divisible"),
    ("--pipeline-model-parallel-size 1 --decoder-last-pipeline-num-layers 1", "pp-not-divisible"),
    ("--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 3", "vpp-not-divisible"),
    ("--pipeline-model-parallel-size 1 --num-layers-per-virtual-pipeline-stage 4", "vpp-not-divisible"),
    ("--expert-model-parallel-size 2", "ep-not-divisible"),
    ("--context-parallel-size 3", "world-not-divisible"),
    ("--actor-num-gpus-per-node 3", "world-not-divisible"),
]


@pytest.mark.parametrize(("more", "code"), SIZE_CASES)
def test_sizes_that_do_not_divide(world: World, more: str, code: str) -> None:
    assert code in world.errors(more)


@pytest.mark.parametrize(
    "more",
    [
        "--pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
        "--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 2",
        "--context-parallel-size 2",
        "--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout Et|t|tL --actor-num-nodes 3",
    ],
)
def test_sizes_that_divide(world: World, more: str) -> None:
    assert world.errors(more) == []


NO_SIZE = [
    "--tensor-model-parallel-size 0",
    "--tensor-model-parallel-size -2",
    "--pipeline-model-parallel-size 0",
    "--expert-model-parallel-size 0",
    "--context-parallel-size -1",
    "--actor-num-nodes 0",
    "--rollout-num-gpus-per-engine 0",
    "--sglang-pp-size 0",
    "--sglang-ep-size -1",
    "--sglang-dp-size 0",
]


@pytest.mark.parametrize("more", NO_SIZE)
def test_a_size_below_one_is_none(world: World, more: str) -> None:
    assert world.errors(more) == ["flag-malformed"]


@pytest.mark.parametrize(("gpus", "stages"), [(8, 3), (2, 4)])
def test_stages_that_do_not_divide_an_engine(world: World, gpus: int, stages: int) -> None:
    more = f"--rollout-num-gpus-per-engine {gpus} --sglang-pp-size {stages}"
    assert world.errors(more) == ["server-parallel"]
    assert world.errors("--rollout-num-gpus-per-engine 4 --sglang-pp-size 2") == []
