"""Broken and contradictory input, end to end: refused with a stable code, everything said, nothing left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.errors import ExitCode
from tests.checkpoints import INDEX, changed, changed_config, holders, iteration, write_index
from tests.command import Ran
from tests.conftest import Command, Tiny
from tests.convert.refusal import check_refusal

FIRST = "model-00001-of-00003.safetensors"
Damage = Callable[[Path], None]


def truncated(folder: Path) -> None:
    path = folder / FIRST
    path.write_bytes(path.read_bytes()[:-1])


def header_cut(folder: Path) -> None:
    path = folder / FIRST
    path.write_bytes(path.read_bytes()[:20])


def no_index_target(folder: Path) -> None:
    (folder / FIRST).unlink()


def ghost(folder: Path) -> None:
    write_index(folder, holders(folder) | {"model.layers.9.mlp.down_proj.weight": FIRST})


def missing_tensor(folder: Path) -> None:
    with changed(folder / FIRST) as tensors:
        tensors.pop(next(name for name in tensors if name.endswith("weight")))
    write_index(folder, holders(folder))


def another_shape(folder: Path) -> None:
    with changed(folder / FIRST) as tensors:
        name = next(name for name in tensors if tensors[name].dim() == 2)
        tensors[name] = tensors[name][:-1]


def transposed(folder: Path) -> None:
    for file in set(holders(folder).values()):
        with changed(folder / file) as tensors:
            for name in [name for name in tensors if name.endswith("down_proj.weight")]:
                tensors[name] = tensors[name].T.contiguous()


def no_model_type(folder: Path) -> None:
    with changed_config(folder) as config:
        del config["model_type"]


def other_activation(folder: Path) -> None:
    with changed_config(folder) as config:
        config["hidden_act"] = "gelu"


def heads(folder: Path) -> None:
    with changed_config(folder) as config:
        config["num_key_value_heads"] = 3


def mixed_dtypes(folder: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    with changed(folder / holders(folder)[name]) as tensors:
        tensors[name] = tensors[name].float()


def overlap(folder: Path) -> None:
    _edit_header(folder / FIRST, lambda entries: _shift(entries, -8))


def hole(folder: Path) -> None:
    _edit_header(folder / FIRST, lambda entries: _shift(entries, 8))


def strange_dtype(folder: Path) -> None:
    def edit(entries: dict[str, Any]) -> None:
        next(iter(entries.values()))["dtype"] = "F7"

    _edit_header(folder / FIRST, edit)


def twice(folder: Path) -> None:
    shutil.copyfile(folder / FIRST, folder / "copy.safetensors")


def config_is_text(folder: Path) -> None:
    (folder / "config.json").write_text("not json")


def config_gone(folder: Path) -> None:
    (folder / "config.json").unlink()


def _shift(entries: dict[str, Any], by: int) -> None:
    last = max(entries.values(), key=lambda entry: entry["data_offsets"][1])
    last["data_offsets"] = [value + by for value in last["data_offsets"]]


def _edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    edit(header)
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


HF_CASES: list[tuple[Damage, str, ExitCode]] = [
    (truncated, "file-truncated", ExitCode.FAILED),
    (header_cut, "file-truncated", ExitCode.FAILED),
    (no_index_target, "shard-missing", ExitCode.FAILED),
    (ghost, "index-ghost", ExitCode.FAILED),
    (missing_tensor, "tensors-missing", ExitCode.FAILED),
    (another_shape, "shape", ExitCode.FAILED),
    (transposed, "shape", ExitCode.FAILED),
    (no_model_type, "config-field-missing", ExitCode.FAILED),
    (other_activation, "config-value", ExitCode.FAILED),
    (heads, "heads-not-divisible", ExitCode.FAILED),
    (mixed_dtypes, "dtype-mixed", ExitCode.FAILED),
    (overlap, "header-invalid", ExitCode.FAILED),
    (hole, "header-invalid", ExitCode.FAILED),
    (strange_dtype, "dtype-unknown", ExitCode.FAILED),
    (twice, "tensor-twice", ExitCode.FAILED),
    (config_is_text, "json-unreadable", ExitCode.NOT_FOUND),
    (config_gone, "config-not-found", ExitCode.NOT_FOUND),
]


@pytest.mark.parametrize(("damage", "code", "status"), HF_CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_folder(
    damage: Damage, code: str, status: ExitCode, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source, target = tiny("mimo", shards=3), tmp_path / "out"
    damage(source)
    check_refusal(command("convert", source, target, "--json", code=status), code, target)
    spoken = command("convert", source, target, code=status)
    assert spoken.out == ""
    assert f"error: {code}: " in spoken.err
    assert not list(tmp_path.glob("out*"))
    if code != "dtype-mixed":  # sound by itself; torch-dist could not stack it
        assert code in command("inspect", source, "--json", code=status if code == "json-unreadable" else 1).codes


def first_frame(folder: Path) -> Path:
    return iteration(folder) / "__0_0.distcp"


def frames_cut(folder: Path) -> None:
    first_frame(folder).write_bytes(first_frame(folder).read_bytes()[:-200])


def frames_gone(folder: Path) -> None:
    first_frame(folder).unlink()


def frame_overwritten(folder: Path) -> None:
    with first_frame(folder).open("r+b") as stream:
        stream.write(b"\0" * 64)


def metadata_cut(folder: Path) -> None:
    path = iteration(folder) / ".metadata"
    path.write_bytes(path.read_bytes()[:-10])


def metadata_is_text(folder: Path) -> None:
    (iteration(folder) / ".metadata").write_text("hello")


def carried_config_gone(folder: Path) -> None:
    (iteration(folder) / "hf" / "config.json").unlink()


def larger_model(folder: Path) -> None:
    with changed_config(iteration(folder) / "hf") as config:
        config["intermediate_size"] = 64


def more_layers(folder: Path) -> None:
    with changed_config(iteration(folder) / "hf") as config:
        config["num_hidden_layers"] = 5


TORCH_DIST_CASES: list[tuple[Damage, str, ExitCode]] = [
    (frames_cut, "file-truncated", ExitCode.FAILED),
    (frames_gone, "shard-missing", ExitCode.FAILED),
    (frame_overwritten, "frame-damaged", ExitCode.FAILED),
    (metadata_cut, "pickle-unreadable", ExitCode.FAILED),
    (metadata_is_text, "pickle-unreadable", ExitCode.FAILED),
    (carried_config_gone, "config-not-found", ExitCode.NOT_FOUND),
    (larger_model, "shape", ExitCode.FAILED),
    (more_layers, "shape", ExitCode.FAILED),
]


@pytest.mark.parametrize(
    ("damage", "code", "status"), TORCH_DIST_CASES, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_broken_torch_dist_directory(
    damage: Damage, code: str, status: ExitCode, shared_tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    source, target = tmp_path / "td", tmp_path / "out"
    command("convert", shared_tiny("mimo"), source)
    damage(source)
    check_refusal(command("convert", source, target, "--json", code=status), code, target)
    assert code in command("inspect", source, "--check", "--json", code=None).codes


@pytest.mark.parametrize("where", ["nowhere", "nowhere/at all/here", "./none"])
def test_a_source_that_does_not_exist(where: str, command: Command, tmp_path: Path) -> None:
    target = tmp_path / "out"
    check_refusal(command("convert", tmp_path / where, target, "--json", code=3), "ref-not-found", target)


def test_a_directory_without_a_checkpoint(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    target = tmp_path / "out"
    check_refusal(command("convert", tmp_path / "empty", target, "--json", code=3), "checkpoint-not-found", target)


@pytest.mark.parametrize("inner", [".", "release", "model/deep"])
def test_source_and_destination_in_each_other(inner: str, tiny: Tiny, command: Command) -> None:
    source = tiny("llama")
    before = sorted(source.rglob("*"))
    assert command("convert", source, source / inner, "--overwrite", "--json", code=2).codes == ["output-in-source"]
    assert sorted(source.rglob("*")) == before


def test_too_little_disk_is_known_before_the_first_byte(
    shared_tiny: Tiny, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    source, target = shared_tiny("qwen3"), tmp_path / "out"
    ran = command("convert", source, target, "--json", code=1)
    check_refusal(ran, "disk-full", target)
    assert ran.findings[0]["actual"] == "1,000 bytes free"
    dry = command("convert", source, target, "--dry-run", "--json")
    assert [(finding["code"], finding["severity"]) for finding in dry.findings] == [("disk-full", "warning")]


def test_a_disk_that_fills_up_while_writing(shared_tiny: Tiny, tmp_path: Path) -> None:
    """A real limit on file size; the kernel refuses in the middle of the program."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000));"
        "from ckpt_tools.cli import main; main()"
    )
    target = tmp_path / "out"
    words = ["convert", shared_tiny("llama"), target, "--json"]
    done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, check=False)
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert (ran.code, ran.codes) == (1, ["disk-full"])
    check_refusal(ran, "disk-full", target)


def test_everything_wrong_is_said_at_once(tiny: Tiny, command: Command, tmp_path: Path) -> None:
    source = tiny("mimo", shards=3)
    truncated(source)
    no_second = source / "model-00002-of-00003.safetensors"
    no_second.unlink()
    codes = command("convert", source, tmp_path / "out", "--json", code=1).codes
    assert {"file-truncated", "shard-missing"} <= set(codes)
    sound = tiny("mimo")
    with changed(sound / "model.safetensors") as tensors:
        del tensors["model.norm.weight"]
        tensors["stranger"] = torch.ones(1)
        tensors["lm_head.weight"] = torch.ones(2, 2)
    codes = command("convert", sound, tmp_path / "out", "--json", code=1).codes
    assert codes == ["tensors-missing", "tensors-unmapped", "shape"]
    assert not (sound / INDEX).exists()
