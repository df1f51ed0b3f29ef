"""Whether parallel sizes go together: real megatron-core and preflight agree, over many combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ckpt_tools.drafts.formats.targets import Target
from ckpt_tools.families import family_of
from ckpt_tools.families.config import Fields
from ckpt_tools.launch.case import Case, HfTarget
from ckpt_tools.launch.flags import parse_flags
from ckpt_tools.launch.parallel import PP, check_parallel
from ckpt_tools.launch.releases import release
from ckpt_tools.launch.shell.script import read_words
from tests.golden import load

pytestmark = pytest.mark.oracle
parallel_state = pytest.importorskip("megatron.core.parallel_state")
block = pytest.importorskip("megatron.core.transformer.transformer_block")
config = pytest.importorskip("megatron.core.transformer.transformer_config")


def checked(golden: str, flags: str, **changes: int) -> Case:
    """The parallel checks of a release, with fields of its config changed."""
    values = load(golden).config | changes
    fields = Fields(values, "test")
    family = family_of(fields)
    dims = family.dims(fields)
    unused = (dims.hidden_size, dims.num_hidden_layers, dims.vocab_size, dims.max_position_embeddings)
    read = Target(None, "", values, None, *unused, family, dims)  # type: ignore[arg-type]
    case = Case(release(), training=parse_flags(read_words(flags)), target=HfTarget(read, frozenset(), None))
    check_parallel(case)
    return case


@pytest.fixture
def world() -> Iterator[None]:
    yield
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


SIZES = [
    (8, 2, 2, 2, 8, 1),  # slime's GLM-4.7-Flash on one node
    (16, 2, 2, 2, 8, 1),
    (256, 4, 8, 8, 32, 1),  # GLM-5.2
    (128, 8, 4, 4, 32, 1),  # DeepSeek-R1
    (64, 8, 4, 2, 16, 1),  # GLM-4.7
    (32, 2, 4, 4, 8, 1),  # Qwen3-Next
    (24, 2, 2, 2, 8, 1),
    (12, 2, 3, 2, 4, 1),
    (8, 1, 1, 3, 1, 1),
    (8, 4, 1, 1, 4, 2),
    (8, 4, 1, 1, 4, 4),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.usefixtures("world")
def test_groups_of_gpus(sizes: tuple[int, ...]) -> None:
    gpus, tp, pp, cp, ep, etp = sizes
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )
        accepts = True
    except RuntimeError as problem:
        assert "divisible" in str(problem)
        accepts = False
    flags = (
        f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --context-parallel-size {cp}"
        f" --expert-model-parallel-size {ep} --expert-tensor-parallel-size {etp}"
        f" --actor-num-nodes 1 --actor-num-gpus-per-node {gpus}"
    )
    codes = [finding.code for finding in checked("GLM-4.5", flags).report.errors]
    assert ("world-not-divisible" not in codes) == accepts


LAYERS, STAGES, OWN = (4, 47, 61, 78), (1, 2, 4, 8), (None, 1, 13, 23)
SPLITS = [s for s in itertools.product(LAYERS, STAGES, OWN, OWN) if s[1] > 1 or s[2:] == (None, None)]


def test_layers_on_stages() -> None:
    """Every split that megatron-core makes has our counts; what it refuses, or what leaves a stage empty, we refuse."""
    agreed = {True: 0, False: 0}
    for layers, pp, first, last in SPLITS:
        megatron = stages(layers, pp, first, last)
        sound = megatron is not None and all(count > 0 for count in megatron) and sum(megatron) == layers
        flags = f"--pipeline-model-parallel-size {pp}"
        flags += f" --decoder-first-pipeline-num-layers {first}" if first else ""
        flags += f" --decoder-last-pipeline-num-layers {last}" if last else ""
        case = checked("Qwen3-8B", flags, num_hidden_layers=layers)
        ours = not [finding for finding in case.report.errors if finding.code == "pp-not-divisible"]
        assert ours == sound, (layers, pp, first, last, megatron)
        if ours:
            (check,) = [check for check in case.checks if check.name == PP]
            assert check.actual == f"{layers} layers as {'+'.join(map(str, megatron or []))}"
        agreed[sound] += 1
    assert min(agreed.values()) > 20


def stages(layers: int, pp: int, first: int | None, last: int | None) -> list[int] | None:
    """Layers on every rank by megatron-core; None if it refuses."""
    try:
        made = config.TransformerConfig(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=1,
            pipeline_model_parallel_size=pp,
            pipeline_dtype="float32" if pp > 1 else None,
            num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last,
        )
        return [block.get_num_layers_to_build(made, pp_rank=rank) for rank in range(pp)]
    except (AssertionError, ValueError):
        return None
