"""Every public release of a supported family, as headers without data: its table, and both conversions of it.

A release of 1.3 TB is a sparse folder (scripts/make_sparse.py). Conversions write what they lay out, headers, metadata and
files of the right size, and no tensor bytes: those of the source are all zero.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from make_sparse import UNKNOWN_DTYPE, make_sparse, nbytes, release_tensors

from ckpt_tools.convert import Options, Result, convert, writing
from ckpt_tools.convert import run as conversion
from ckpt_tools.convert.options import CARRY
from ckpt_tools.convert.to_megatron import plan_megatron
from ckpt_tools.engine import output
from ckpt_tools.engine.execute import Timing
from ckpt_tools.engine.program import Program
from ckpt_tools.errors import CkptError
from ckpt_tools.families import FAMILIES
from ckpt_tools.inspection import inspect_checkpoint
from ckpt_tools.mapping.rules import hf_shapes
from ckpt_tools.model import Model, open_model

from .golden import Golden, load, names

Shape = tuple[int, ...]
Headers = dict[str, tuple[Shape, str]]
Sparse = Callable[[str], Path]

SUPPORTED = {model_type for family in FAMILIES for model_type in family.model_types}
GOLDENS = {name: load(name) for name in names()}
# Releases whose golden config lacks fields that a table needs: why, and a release of the family that states them.
INCOMPLETE_CONFIG = {
    "Qwen3.5-27B": ("the list holds only the fields that tensor shapes fix", "Qwen3.5-4B"),
}
# Fields that a golden config lacks and no sister release states: names and shapes of its own list, or SGLang's class.
STATED = {
    "Step-3.5-Flash": {
        "layer_types": [("sliding" if i % 4 else "full") + "_attention" for i in range(48)],
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8},
        "moe_layers_enum": ",".join(map(str, range(3, 45))),
        "moe_router_scaling_factor": 3.0,
        "norm_expert_weight": True,
        "rope_theta": [10000.0] * 48,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 128000,
    },
    "Nemotron-3-Super-120B-A12B": {
        "use_conv_bias": True,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 262144,
    },
}
# Releases whose golden list lacks tensors that the release has.
INCOMPLETE_LIST = {
    "MiMo-V2-Flash": "its MTP tensors were not seen",
    "Moonlight-16B-A3B-Instruct": "names are derived; it has no MTP layer, so none is missed",
}
LARGE = 50_000  # tensors; opening more takes seconds
HEAVY = 30_000_000_000  # parameters; converting more does, whether experts are packed or not
ACCEPTED = sorted(GOLDENS)


def marked(chosen: list[str], slow: Callable[[Golden], bool]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.huge] if slow(GOLDENS[name]) else []) for name in chosen]


def large(release: Golden) -> bool:
    return release.count > LARGE


def heavy(release: Golden) -> bool:
    return release.parameters["total"] > HEAVY


def unknown_shapes(release: Golden) -> dict[str, Shape]:
    """The MiMo-7B list has names only; its shapes are Qwen2's, from the config's widths."""
    config = release.config
    if release.name != "MiMo-7B":
        return {}
    h, f, v = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    endings: dict[str, Shape] = {
        "norm.weight": (h,),
        "embed_tokens.weight": (v, h),
        "lm_head.weight": (v, h),
        "input_proj.weight": (h, 2 * h),
        "q_proj.weight": (q, h),
        "q_proj.bias": (q,),
        "o_proj.weight": (h, q),
        "gate_proj.weight": (f, h),
        "up_proj.weight": (f, h),
        "down_proj.weight": (h, f),
    }
    endings |= {f"{part}_proj.{kind}": shape for part in "kv" for kind, shape in (("weight", (kv, h)), ("bias", (kv,)))}
    return {name: next(s for end, s in endings.items() if name.endswith(end)) for name in release.tensors()}


def missing_fields(name: str) -> dict[str, Any]:
    """The fields that a release's golden config lacks, as its sister release states them or the list implies."""
    if name in STATED:
        return dict(STATED[name])
    if name not in INCOMPLETE_CONFIG:
        return {}
    there, own = GOLDENS[INCOMPLETE_CONFIG[name][1]].text_config, GOLDENS[name].text_config
    return {key: value for key, value in there.items() if key not in own and key != "layer_types"}


@pytest.fixture(scope="module", autouse=True)
def without_collector() -> Iterator[None]:
    """As the command line runs: a plan is a million small objects without cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Sparse:
    """The sparse folder of a release, dealt to some eight files."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            release = GOLDENS[name]
            shapes = unknown_shapes(release)
            total = sum(nbytes(*tensor) for tensor in release_tensors(release, shapes).values())
            path = tmp_path_factory.mktemp("sparse") / name
            extra = missing_fields(name)
            made[name] = make_sparse(name, path, max_shard=total // 8, shapes=shapes, extra_config=extra)
        return made[name]

    return folder


@pytest.fixture
def layout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions that write everything but tensor bytes, however small the disk."""

    def laid_out(program: Program, root: Path, *rest: object) -> Timing:
        for file, literals in groupby(sorted(program.image.literals), key=lambda literal: literal.file):
            with (root / program.image.files[file][0]).open("r+b") as stream:
                for _, offset, data, _ in literals:
                    stream.seek(offset)
                    stream.write(data)
        for name, data in program.image.small_files.items():
            (root / name).write_bytes(data)
        return Timing(0.0, 0.0)

    monkeypatch.setattr(writing, "execute", laid_out)
    monkeypatch.setattr(conversion, "check_space", lambda target, size: None)
    monkeypatch.setattr(output, "check_space", lambda target, size: None)


def headers(folder: Path) -> Headers:
    """Every tensor of a folder by the headers of its files; the data must be as long as they say."""
    found: Headers = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        assert path.stat().st_size == 8 + length + max(entry["data_offsets"][1] for entry in header.values())
        assert not header.keys() & found.keys()
        found |= {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
    return found


def is_scale(name: str) -> bool:
    return name.endswith((".weight_scale_inv", ".weight_scale", "_proj_scales"))


def dequantised(name: str, tensor: tuple[Shape, str]) -> tuple[str, tuple[Shape, str]]:
    """float8 as bfloat16; the mxfp4 experts of gpt-oss as its bfloat16 releases store them, transposed."""
    shape, dtype = tensor
    if name.endswith("_blocks"):
        experts, rows, groups, width = shape
        return name.removesuffix("_blocks"), ((experts, groups * width * 2, rows), "BF16")
    return name, (shape, "BF16" if dtype.startswith("F8_") else dtype)


def is_buffer(name: str) -> bool:
    return name.endswith(".rotary_emb.inv_freq")


def is_copy(name: str) -> bool:
    """Of the embedding or the head, in an MTP layer or of a tied model."""
    return name.startswith("model.layers.") and name.endswith(
        (".embed_tokens.weight", ".shared_head.head.weight", ".shared_head.output.weight")
    )


def test_every_release_is_accounted_for() -> None:
    """A golden that is not tested here has its reason above."""
    assert {name for name, release in GOLDENS.items() if release.family not in SUPPORTED} == set()
    assert {name for name, release in GOLDENS.items() if not release.complete} == INCOMPLETE_LIST.keys()
    assert GOLDENS.keys() >= INCOMPLETE_CONFIG.keys()


@pytest.mark.parametrize("name", sorted(INCOMPLETE_CONFIG))
def test_an_incomplete_config_is_refused(name: str, tmp_path: Path) -> None:
    """And what it lacks is named, all of it, so that the tests below can fill it in."""
    folder = make_sparse(name, tmp_path / name)
    with pytest.raises(CkptError) as caught:
        open_model(folder)
    assert {finding.code for finding in caught.value.findings} == {"config-field-missing"}
    assert len(caught.value.findings) > 1


@pytest.mark.parametrize("name", sorted(STATED))
def test_a_config_without_the_fields_that_the_list_implies_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError) as caught:
        open_model(make_sparse(name, tmp_path / name))
    codes = {finding.code for finding in caught.value.findings}
    assert "config-field-missing" in codes
    assert codes <= {"config-field-missing", "config-value"}


@pytest.mark.parametrize("name", marked(ACCEPTED, large))
def test_the_table_names_every_tensor_and_shape(name: str, sparse: Sparse) -> None:
    """From the config alone: the layout variants are told by names, nothing else is."""
    release = GOLDENS[name]
    stored = release_tensors(release, unknown_shapes(release))
    model = open_model(sparse(name))
    expected = hf_shapes(model.table)
    rest = stored.keys() - expected.keys()
    assert not expected.keys() - stored.keys()
    assert {key: shape for key, (shape, _) in stored.items() if key in expected} == expected
    scales = {key for key in rest if is_scale(key)}  # those of mxfp4 are in the table
    assert {key for key in rest - scales if not (is_buffer(key) or is_copy(key))} == explained(model, release)
    assert model.scales.keys() == {key for key, (_, dtype) in stored.items() if dtype.startswith("F8_")}
    assert len(scales) == len(model.scales)
    shown = release.text_config.get("num_nextn_predict_layers", release.text_config.get("mtp_num_hidden_layers"))
    assert model.mtp == (shown if shown is not None else model.mtp)
    assert_mtp_layers(model, release)


def explained(model: Model, release: Golden) -> set[str]:
    """The tensors that are not the language model's, and the head of a tied model that stores it."""
    head = {"lm_head.weight"} if model.dims.tied and "lm_head.weight" in release.tensors() else set()
    return set(model.towers) | head


MTP_LAYERS = {
    "MiMo-7B": 1,
    "MiMo-V2.5": 3,
    "GLM-4.6": 1,
    "Qwen3-Next-80B-A3B-Instruct": 1,
    "Qwen3.5-27B": 1,
    "Step-3.5-Flash": 3,
    "Nemotron-3-Super-120B-A12B": 1,
}


def assert_mtp_layers(model: Model, release: Golden) -> None:
    """As many as the names show."""
    n = model.dims.num_hidden_layers
    beyond = any(name.startswith(f"model.layers.{n}.") for name in release.tensors())
    outside = any(name.startswith("mtp.") for name in release.tensors())
    assert model.mtp == MTP_LAYERS.get(release.name, int(beyond or outside))


@pytest.mark.parametrize("name", marked(ACCEPTED, heavy))
def test_inspect_finds_nothing_wrong(name: str, sparse: Sparse) -> None:
    found, findings = inspect_checkpoint(sparse(name))
    problems = {finding.code for finding in findings if finding.severity == "error"}
    declares = GOLDENS[name].family in ("qwen3_next", "mimo_v2")
    assert problems <= ({"mtp-undeclared"} if declares else set())
    assert found.tensors == GOLDENS[name].count
    assert found.family


@pytest.mark.parametrize("name", marked(ACCEPTED, heavy))
def test_both_conversions(name: str, sparse: Sparse, tmp_path: Path, layout_only: None) -> None:
    """To torch-dist and back, dry and laid out: the same names, shapes and dtypes, float8 as bfloat16."""
    source = sparse(name)
    dry = convert(source, tmp_path / "td", Options(rest=CARRY, dry_run=True)).result
    there = convert(source, tmp_path / "td", Options(rest=CARRY)).result
    assert sizes(dry) == sizes(there)
    dry = convert(tmp_path / "td", tmp_path / "hf", Options(dry_run=True)).result
    back = convert(tmp_path / "td", tmp_path / "hf", Options()).result
    assert sizes(dry) == sizes(back)
    stored = headers(source)
    expected = dict(dequantised(*item) for item in stored.items() if not (is_scale(item[0]) or is_buffer(item[0])))
    assert headers(tmp_path / "hf") == expected


def sizes(result: Result) -> tuple[int, int, int, int]:
    return result.tensors, result.nbytes, result.files, result.mtp_written


def test_a_real_conversion_of_holes(sparse: Sparse, tmp_path: Path) -> None:
    """1.7 GB with delta nets, an MTP layer and a vision tower: every byte that comes back is zero."""
    source = sparse("Qwen3.5-0.8B-Base")
    convert(source, tmp_path / "td", Options(rest=CARRY))
    convert(tmp_path / "td", tmp_path / "hf", Options(max_shard_size=400_000_000))
    assert headers(tmp_path / "hf") == headers(source)
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 4
    for path in files:
        with path.open("rb") as stream:
            stream.seek(8 + int.from_bytes(stream.read(8), "little"))
            while block := stream.read(1 << 24):
                assert not any(block[: 1 << 16]) and block.count(0) == len(block)


def test_deepseek_v3_is_planned_in_full(sparse: Sparse) -> None:
    """92 thousand tensors with scales: every weight has its move, and planning reads no tensor bytes (they are holes)."""
    model = open_model(sparse("DeepSeek-V3"))
    plan = plan_megatron(model, 1, Options())
    assert len(plan.program.moves) > 45_000
    assert len(model.scales) > 45_000


def test_an_unknown_dtype_is_stored_as_the_others() -> None:
    release = GOLDENS["Moonlight-16B-A3B-Instruct"]
    unknown = [name for name, (_, dtype) in release.tensors().items() if dtype is None]
    tensors = release_tensors(release)
    assert unknown
    assert {tensors[name][1] for name in unknown} == {UNKNOWN_DTYPE}
