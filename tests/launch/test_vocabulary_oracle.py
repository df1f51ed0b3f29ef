"""Vocabularies padded to another size: real megatron-core loads them, or does not, as preflight says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckpt_tools
from ckpt_tools.convert import Options, convert
from tests.oracles.megatron.configs import TRAINING, tiny_config
from tests.oracles.megatron.run import run_job
from tests.oracles.megatron.tiny import tiny_tensors, write_folder

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
pytest.importorskip("megatron.core")

TOKENS = 96
STORED = {"as it is": (1, 1), "usual": (128, 1), "for two ranks": (128, 2)}  # --make-vocab-size-divisible-by, --tp
ROWS = {"as it is": 96, "usual": 128, "for two ranks": 256}
TRAINED = {"same": (1, 96), "usual": (128, 128), "larger": (384, 384)}  # --make-vocab-size-divisible-by, its rows


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One MiMo, converted with every padding; a run of it with optimizer; the same with twice the tokens."""
    base = tmp_path_factory.mktemp("vocabulary")
    config = tiny_config("mimo", vocab_size=TOKENS)
    write_folder(base / "hf", config, tiny_tensors(config))
    wider = config | {"vocab_size": 2 * TOKENS}
    write_folder(base / "wider", wider, tiny_tensors(wider))
    for name, (divisor, tp) in STORED.items():
        convert(base / "hf", base / name, Options(make_vocab_size_divisible_by=divisor, tp=tp))
    step = {"kind": "save", "hf": str(base / "hf"), "padded_vocab": 128, "dtype": "bf16"}
    kinds = ("distributed", "fully-reshardable")
    steps = [
        {**step, **TRAINING[kind], "first_stage_layers": None, "dir": str(base / kind / "iter_0000007")}
        for kind in kinds
    ]
    run_job({"steps": steps})
    for kind in kinds:
        (base / kind / "latest_checkpointed_iteration.txt").write_text("7")
    return base


@pytest.fixture(scope="module")
def loaded(world: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Every stored padding into every trained one, on two tensor-parallel ranks; results by (stored, trained)."""
    pairs = [(stored, trained) for stored in STORED for trained in TRAINED]
    step = {"kind": "load", "hf": str(world / "hf")}
    steps = [
        {**step, "dir": str(world / stored / "release"), "padded_vocab": TRAINED[trained][1]}
        for stored, trained in pairs
    ]
    lacking = {**step, "hf": str(world / "wider"), "dir": str(world / "usual" / "release"), "padded_vocab": 2 * TOKENS}
    return dict(zip([*pairs, ("usual", "wider")], run_job({"tp": 2, "steps": [*steps, lacking]})["steps"], strict=True))


def padding(target: Path, stored: Path, divisor: int, more: str = "", vocab: int = TOKENS) -> tuple[str, str]:
    """(severity, code) of preflight's finding about the padding; ("", "") for none."""
    args = f"--vocab-size {vocab} --make-vocab-size-divisible-by {divisor} {more}"
    found = ckpt_tools.preflight(target=target, torch_dist=stored, args=args).findings
    return next(((f.severity, f.code) for f in found if "vocab" in f.code), ("", ""))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("trained", TRAINED)
def test_what_megatron_loads_exactly_is_no_error(
    world: Path, loaded: dict[tuple[str, str], dict[str, Any]], stored: str, trained: str
) -> None:
    result = loaded[stored, trained]
    assert result["equal"], result["mismatches"]
    divisor, rows = TRAINED[trained]
    same = rows == ROWS[stored]
    assert padding(world / "hf", world / stored, divisor) == (("", "") if same else ("warning", "padded-vocab"))


def test_tokens_without_a_row_load_without_a_word(world: Path, loaded: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Megatron raises nothing, and the rows are zeros: that must be an error here."""
    wrong = {mismatch["parameter"] for mismatch in loaded["usual", "wider"]["mismatches"]}
    assert {"embedding.word_embeddings.weight", "output_layer.weight"} <= wrong
    assert padding(world / "wider", world / "usual", 1, vocab=2 * TOKENS) == ("error", "vocab-too-small")


@pytest.mark.parametrize("kind", ["distributed", "fully-reshardable"])
def test_an_optimizer_of_another_padding(world: Path, kind: str) -> None:
    """Flat buffers are refused at another size, states by parameter are not; both load at their own."""
    directory = world / kind
    step = {"kind": "resume", "hf": str(world / "hf"), "dir": str(directory / "iter_0000007")}
    step |= {"optimizer": "distributed", "dtype": "bf16"}
    same, other = run_job({"steps": [{**step, "padded_vocab": 128}, {**step, "padded_vocab": 256}]})["steps"]
    assert not same["refused"]
    assert ("mismatch" in other["refused"]) == (kind == "distributed")
    expected = ("error", "padded-vocab-optimizer") if kind == "distributed" else ("warning", "padded-vocab")
    assert padding(world / "hf", directory, 256, f"--load {directory}") == expected
    assert padding(world / "hf", directory, 128, f"--load {directory}") == ("", "")
    for more in (f"--load {directory} --finetune", f"--load {directory} --no-load-optim", f"--ref-load {directory}"):
        assert padding(world / "hf", directory, 256, more) == ("warning", "padded-vocab")
