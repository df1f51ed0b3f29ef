"""MTP layers out of a model and back: bit-exact, only the shards that change, nothing in place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ckpt_tools.convert import Options as ConvertOptions
from ckpt_tools.convert import convert
from ckpt_tools.drafts import links
from ckpt_tools.drafts.export import Options
from ckpt_tools.drafts.manifest import read_manifest
from ckpt_tools.drafts.merge import merge_draft
from ckpt_tools.drafts.mtp import extract_draft
from ckpt_tools.errors import CkptError, Finding, OutputExists
from ckpt_tools.inspection import inspect_checkpoint
from tests.checkpoints import (
    INDEX,
    assert_same,
    changed,
    config_of,
    hf_tensors,
    holders,
    tree,
    write_index,
)
from tests.conftest import Command, Tiny

from .mtp_layers import HEADS, codes, head_of


def sharded(model: Path, family: str, out: Path) -> Path:
    """The same model in four files: two of the body, one of the head, one with the rest of both."""
    every = hf_tensors(model)
    head = list(head_of(every, family))
    body = [name for name in every if name not in head]
    third = len(body) // 3
    parts = [body[:third], body[third : 2 * third], head[:3], body[2 * third :] + head[3:]]
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("*.safetensors", INDEX))
    for number, names in enumerate(parts, 1):
        file = out / f"model-{number:05d}-of-00004.safetensors"
        save_file({name: every[name] for name in names}, file, metadata={"format": "pt"})
    write_index(out, holders(out))
    return out


@pytest.mark.parametrize("family", HEADS)
def test_extract_and_merge_are_bit_exact(family: str, tiny: Tiny, tmp_path: Path) -> None:
    model = sharded(tiny(family, layers=2), family, tmp_path / "model")
    every = hf_tensors(model)
    head, before = head_of(every, family), tree(model)
    assert head
    found = extract_draft(model, tmp_path / "head", Options())
    assert_same(hf_tensors(tmp_path / "head"), head)
    assert found.result.tensors == len(head) and found.result.architecture == config_of(model)["architectures"][0]
    assert config_of(tmp_path / "head") == config_of(model)  # the target's architecture, all of its dimensions
    with_zeros = tmp_path / "zeros"
    shutil.copytree(tmp_path / "head", with_zeros)
    with changed(with_zeros / "model.safetensors") as tensors:
        for name in tensors:
            tensors[name] = tensors[name] * 2
    merged = merge_draft(model, with_zeros, tmp_path / "merged", Options()).result
    assert_same(hf_tensors(tmp_path / "merged"), {**every, **{n: t * 2 for n, t in head.items()}})
    assert (merged.files, merged.unchanged) == (2, 2)
    back = merge_draft(tmp_path / "merged", tmp_path / "head", tmp_path / "back", Options()).result
    assert_same(hf_tensors(tmp_path / "back"), every)
    assert back.files == merged.files
    assert tree(model) == before
    original, again = (inspect_checkpoint(folder).findings for folder in (model, tmp_path / "merged"))
    assert [finding.code for finding in again] == [finding.code for finding in original]


def test_only_shards_with_the_head_are_written(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded(tiny("mimo"), "mimo", tmp_path / "model")
    extract_draft(model, tmp_path / "head", Options())
    taken: list[str] = []
    real = links.take_over
    monkeypatch.setattr("ckpt_tools.drafts.merge.take_over", lambda a, b: (taken.append(b.name), real(a, b)))
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    held = {file for name, file in holders(model).items() if name.startswith(HEADS["mimo"])}
    assert set(taken) == set(holders(model).values()) - held and len(held) == len(taken) == 2
    for name in taken:
        assert (tmp_path / "merged" / name).read_bytes() == (model / name).read_bytes()
    index = json.loads((tmp_path / "merged" / INDEX).read_text())
    assert index["weight_map"] == holders(tmp_path / "merged") == holders(model)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_head_into_a_model_without_one(shards: int, tiny: Tiny, tmp_path: Path) -> None:
    """One file stays one file; with an index the head gets a file of its own. The config counts it."""
    model, bare = tiny("mimo", shards=shards), tiny("mimo", shards=shards, mtp=0)
    extract_draft(model, tmp_path / "head", Options())
    result = merge_draft(bare, tmp_path / "head", tmp_path / "merged", Options()).result
    merged = hf_tensors(tmp_path / "merged")
    assert_same(merged, {**hf_tensors(bare), **head_of(hf_tensors(model), "mimo")})
    assert config_of(tmp_path / "merged")["num_nextn_predict_layers"] == 1
    assert (
        (tmp_path / "merged" / INDEX).exists()
        == (shards > 1)
        == ("model-mtp.safetensors" in set(holders(tmp_path / "merged").values()))
    )
    assert (result.files, result.unchanged) == (1, 0 if shards == 1 else shards)
    assert inspect_checkpoint(tmp_path / "merged").sound


def test_a_linked_shard_is_never_the_sources_own_again(tiny: Tiny, tmp_path: Path) -> None:
    """Where blocks cannot be shared the file is linked; replacing it in the output leaves the source alone."""
    model = tiny("mimo", shards=3)
    extract_draft(model, tmp_path / "head", Options())
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options())
    before = tree(model)
    merge_draft(model, tmp_path / "head", tmp_path / "merged", Options(overwrite=True))
    assert tree(model) == before


def test_a_second_layer_does_not_stay_behind(tiny: Tiny, tmp_path: Path) -> None:
    """One layer into a model of two: the other goes with its copies of embedding and head, and the config counts one."""
    two, one = tiny("glm4_moe", mtp=2, shards=2), tiny("glm4_moe", mtp=1)
    extract_draft(one, tmp_path / "head", Options())
    merge_draft(two, tmp_path / "head", tmp_path / "merged", Options())
    expected = {name: t for name, t in hf_tensors(two).items() if not name.startswith("model.layers.3.")}
    assert_same(hf_tensors(tmp_path / "merged"), {**expected, **head_of(hf_tensors(one), "glm4_moe")})
    assert config_of(tmp_path / "merged")["num_nextn_predict_layers"] == 1
    assert inspect_checkpoint(tmp_path / "merged").sound


def test_from_megatron_the_trained_weights(tiny: Tiny, tmp_path: Path) -> None:
    """The head that was trained is taken, never the copy that lies in the Hugging Face folder."""
    model = tiny("mimo", shards=2)
    trained = Path(shutil.copytree(model, tmp_path / "trained"))
    for path in trained.glob("*.safetensors"):
        with changed(path) as tensors:
            for name in list(tensors):
                tensors[name] = torch.full_like(tensors[name], 3.0)
    convert(trained, tmp_path / "megatron", ConvertOptions())
    found = extract_draft(tmp_path / "megatron", tmp_path / "head", Options(hf_config=model))
    head = hf_tensors(tmp_path / "head")
    assert head.keys() == head_of(hf_tensors(model), "mimo").keys()
    assert all(bool((tensor == 3.0).all()) for tensor in head.values())
    assert read_manifest(tmp_path / "head").provenance.trained and found.result.source_format == "megatron"
    merge_draft(model, tmp_path / "megatron", tmp_path / "merged", Options())
    merged = hf_tensors(tmp_path / "merged")
    assert_same(merged, {**hf_tensors(model), **head})


@pytest.mark.parametrize("family", ["mimo", "glm4_moe", "qwen3_next", "deepseek_v3"])
def test_out_of_megatron_bit_by_bit(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """Groups of queries, halves and experts come apart as in the original."""
    model = tiny(family)
    convert(model, tmp_path / "megatron", ConvertOptions())
    extract_draft(tmp_path / "megatron", tmp_path / "head", Options())
    assert_same(hf_tensors(tmp_path / "head"), head_of(hf_tensors(model), family))


def test_a_hook_stops_everything(tiny: Tiny, tmp_path: Path) -> None:
    """Verification sees the finished folder, and an error of its own leaves nothing behind."""
    model, seen = tiny("mimo", shards=2), []

    def hook(folder: Path, target: Path) -> list[Finding]:
        seen.append((sorted(path.name for path in folder.iterdir()), target))
        return [Finding("bad", "it does not fit")]

    extract_draft(model, tmp_path / "good", Options())
    for run in (
        lambda out: extract_draft(model, out, Options(verify=hook)),
        lambda out: merge_draft(model, tmp_path / "good", out, Options(verify=hook)),
    ):
        with pytest.raises(CkptError) as failure:
            run(tmp_path / "out")
        assert codes(failure) == ["bad"]
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
        assert {"config.json", "draft_manifest.json"} < set(seen[-1][0]) and seen[-1][1] == model


def test_the_manifest_tells_every_file(tiny: Tiny, tmp_path: Path) -> None:
    import hashlib

    model = tiny("mimo")
    extract_draft(model, tmp_path / "head", Options(target_name="org/model", identity={"arch_hash": "x"}))
    manifest = read_manifest(tmp_path / "head")
    assert (manifest.format, manifest.kind, manifest.target.ref) == ("sglang", "mtp", "org/model")
    assert manifest.target.identity == {"arch_hash": "x"} and manifest.provenance.source == model.name
    files = {path.name: path for path in (tmp_path / "head").iterdir() if path.name != "draft_manifest.json"}
    assert {n: f.sha256 for n, f in manifest.files.items()} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    assert str(tmp_path) not in (tmp_path / "head" / "draft_manifest.json").read_text()


def test_commands(tiny: Tiny, tmp_path: Path, command: Command) -> None:
    model, head, merged = tiny("mimo", shards=2), tmp_path / "head", tmp_path / "merged"
    assert command("extract-draft", model, head, "--dry-run", "--json").result["dry_run"] is True
    assert not head.exists()
    command("extract-draft", model, head)
    assert command("extract-draft", model, head, "--json", code=5).codes == ["output-exists"]
    ran = command("merge-draft", model, head, merged, "--json")
    assert ran.result["unchanged"] + ran.result["files"] == 2
    assert_same(hf_tensors(merged), hf_tensors(model))
    assert (
        command(
            "merge-draft",
            model,
            head,
            model,
            code=2,
        ).code
        == 2
    )
    with pytest.raises(OutputExists):
        extract_draft(model, head, Options())


def test_a_manifest_of_another_version_is_not_read(tiny: Tiny, tmp_path: Path) -> None:
    extract_draft(tiny("mimo"), tmp_path / "head", Options())
    path = tmp_path / "head" / "draft_manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(CkptError) as failure:
        read_manifest(tmp_path / "head")
    assert codes(failure) == ["manifest-unreadable"]
