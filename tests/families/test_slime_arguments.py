"""megatron-args against the model scripts that slime publishes, flag by flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.golden import SlimeArgs, slime_args

PREFIXES = ("llama3", "qwen2.5-", "qwen3-", "mimo-7B-rl")
MOE = ("qwen3-235B-A22B", "qwen3-30B-A3B", "qwen3-next-80B-A3B")
SLIME = {name: args for name, args in slime_args().items() if name.startswith(PREFIXES) and name not in MOE}
KNOWN = {name: args for name, args in SLIME.items() if args.corresponds}

# Of a release whose config is not recorded whole, only the fields that slime's flags were compared with are known. The
# rest is filled in with values that no compared flag depends on; the flags that do depend on them are left out.
FILLED: dict[str, Any] = {"max_position_embeddings": 1, "hidden_act": "silu", "attention_bias": False}
DEPEND_ON_FILLED = {"--max-position-embeddings", "--use-rope-scaling", "--rotary-scaling-factor"}

# What we print beyond slime's scripts, each from a field of the config.
BEYOND = {
    "--kv-channels": "head_dim, or hidden_size / num_attention_heads, which is Megatron's default as well",
    "--max-position-embeddings": "max_position_embeddings; Megatron asks for it at least as large as the sequence",
    "--rope-scaling-factor": "rope_scaling.factor of a llama3 rope",
}


def config_of(args: SlimeArgs) -> dict[str, Any]:
    """The release's config where it is recorded, else one made from the fields that are known."""
    if (config := args.hf_config()) is not None:
        return config
    family = next(name for name in ("llama", "qwen2", "qwen3", "mimo") if args.name.startswith(name))
    made: dict[str, Any] = {"model_type": family, **FILLED}
    for field, value in args.corresponds.values():
        if field.startswith("not "):
            made[field.removeprefix("not ")] = not value
        elif " / " not in field:
            made[field.rpartition(".")[2]] = value
    return made


def given(flags: list[str]) -> dict[str, Any]:
    """Flag to value, True for a switch."""
    found: dict[str, Any] = {}
    for line in flags:
        flag, _, value = line.partition(" ")
        found[flag] = _value(value) if value else True
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_the_models_compared() -> None:
    """Without a config nothing can be compared; every other dense script is."""
    assert sorted(SLIME.keys() - KNOWN.keys()) == [
        "qwen2.5-32B",
        "qwen3-1.7B",
        "qwen3-14B",
        "qwen3-4B",
        "qwen3-4B-Instruct-2507",
    ]
    assert len(KNOWN) == 11


@pytest.mark.parametrize("name", KNOWN)
def test_every_flag_of_slime_is_printed(name: str, command: Command, tmp_path: Path) -> None:
    args = KNOWN[name]
    (tmp_path / "config.json").write_text(json.dumps(config_of(args)))
    ours = given(command("megatron-args", tmp_path / "config.json").out.splitlines())
    unknown = set() if args.hf_config() else DEPEND_ON_FILLED
    theirs = {flag: value for flag, value in args.flags.items() if flag not in unknown}
    for flag, difference in args.differences.items():
        assert theirs.pop(flag) == difference["slime"]
        assert ours[flag] == difference["hf"]

    # --rotary-scaling-factor is the factor of multi-latent attention's rope in Megatron's argument list; the llama3 rope
    # that --use-rope-scaling turns on takes its factor from --rope-scaling-factor (default 8).
    factor = theirs.pop("--rotary-scaling-factor", None)
    if factor is not None:
        assert ours["--rope-scaling-factor"] == factor
    assert {flag: ours.get(flag) for flag in theirs} == theirs
    beyond = ours.keys() - theirs.keys() - args.differences.keys() - unknown
    assert beyond <= BEYOND.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_flags_beyond_slimes_follow_from_the_config(name: str, command: Command, tmp_path: Path) -> None:
    config = config_of(KNOWN[name])
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = given(command("megatron-args", tmp_path).out.splitlines())
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    assert ours["--kv-channels"] == head_dim
    assert ours["--max-position-embeddings"] == config["max_position_embeddings"]
    rope = config.get("rope_scaling")
    assert ours.get("--rope-scaling-factor") == (rope["factor"] if rope else None)


def test_the_documented_differences() -> None:
    """slime's qwen2.5-1.5B script gives rotary base 10000; the release's config says 1000000, and we follow the config."""
    assert {name: args.differences for name, args in KNOWN.items() if args.differences} == {
        "qwen2.5-1.5B": {"--rotary-base": {"hf": 1000000.0, "slime": 10000}}
    }


# Families with experts, latent attention or delta nets: their scripts, and where they differ from what we print.
WITH_CONFIG = {name: args for name, args in slime_args().items() if args.hf_config() and name not in SLIME}
NOT_COMPARED = {
    "qwen3-235B-A22B": "only the fields that were compared are recorded; no model_type among them",
    "qwen3.5-27B": "only the fields that tensor shapes fix are recorded",
}
# Flags of slime's scripts that no field of a config states: how to run, not what the model is.
RUNNING = {
    "--make-vocab-size-divisible-by": "the user's choice; 128 is Megatron's and our default",
    "--no-position-embedding": "position_embedding_type rope says it",
    "--enable-experimental": "a switch of slime's plugin",
    "--allgather-cp": "context parallelism of slime's plugin",
    "--no-masked-softmax-fusion": "a kernel choice",
    "--no-rope-fusion": "a kernel choice (MiniMax)",
    "--attention-softmax-in-fp32": "a precision choice (MiniMax)",
    "--moe-token-drop-policy": "without a capacity factor nothing is dropped (Moonlight)",
}
# A default that a script states all the same.
DEFAULTS = {"--rotary-percent": 1.0}
DEVIATIONS = {
    (
        "glm4.7-30B-A3B",
        "--add-qkv-bias",
    ): "the release's attention_bias is false, and latent attention has no such bias",
    ("kimi-k2", "--kv-channels"): "slime says 64, DeepSeek's script 128; latent attention does not read it",
    ("qwen3.5-35B-A3B-vl", "--spec"): "the plugin for the whole vision model; the text tower's is printed",
}
MORE_BEYOND = BEYOND | {
    "--norm-epsilon": "rms_norm_eps",
    "--mtp-num-layers": "the MTP layers that the release declares; slime leaves them out unless trained",
    "--moe-token-dispatcher-type": "as in slime's other scripts",
    "--moe-router-bias-update-rate": "0: the selection bias stays as it is",
    "--moe-router-num-groups": "n_group, stated with latent attention",
    "--moe-router-group-topk": "topk_group, stated with latent attention",
    "--attention-softmax-in-fp32": "as in DeepSeek's script",
    "--rotary-scaling-factor": "1: Megatron's latent attention would otherwise scale by 40",
    "--mscale": "1, as above",
    "--mscale-all-dim": "1, as above",
    "--no-rope-fusion": "as in DeepSeek's script",
}


def test_every_script_with_a_config_is_compared() -> None:
    assert WITH_CONFIG.keys() >= NOT_COMPARED.keys()
    assert len(WITH_CONFIG) - len(NOT_COMPARED) == 16


def plain_value(flag: str, value: Any) -> Any:
    """Lists of layers written out, pairs as on the command line."""
    if flag.endswith("-freq") and isinstance(value, str):
        expression = value.removeprefix("(").removesuffix(")")
        runs = [run.rpartition("]*") for run in expression.split("+")]
        return [
            x
            for head, times, tail in runs
            for x in json.loads(head + "]" if times else tail) * int(tail if times else 1)
        ]
    return " ".join(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(WITH_CONFIG.keys() - NOT_COMPARED.keys()))
def test_every_flag_of_slime_is_printed_for_experts(name: str, command: Command, tmp_path: Path) -> None:
    args = WITH_CONFIG[name]
    (tmp_path / "config.json").write_text(json.dumps(args.hf_config()))
    ours = given(command("megatron-args", tmp_path / "config.json").out.splitlines())
    ours = {flag: plain_value(flag, value) for flag, value in ours.items()}
    theirs = {flag: plain_value(flag, value) for flag, value in args.flags.items()}
    for flag, difference in args.differences.items():
        assert theirs.pop(flag) == difference["slime"]
        assert ours[flag] == difference["hf"]
    differ = {flag for flag, value in theirs.items() if ours.get(flag, DEFAULTS.get(flag)) != value}
    expected = {flag for script, flag in DEVIATIONS if script == name}
    assert differ - RUNNING.keys() == expected
    assert ours.keys() - theirs.keys() - args.differences.keys() <= MORE_BEYOND.keys()
