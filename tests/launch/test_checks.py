"""Every check of preflight: what passes, and what fails with which code. One tiny MiMo with an MTP layer, really converted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpt_tools
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


# --- the server

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
