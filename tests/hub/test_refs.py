"""Every command that reads takes Hub refs: what is fetched for it, what is cached, and what is said when it fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, snapshot_download

from ckpt_tools.errors import NotFound
from ckpt_tools.refs import commit_of, resolve, resolve_headers
from tests.checkpoints import changed, tree
from tests.conftest import Command, Tiny
from tests.drafts.heads import asset, target_of
from tests.hub.server import HubServer

HEAD, BASE, MODEL = "someone/smollm2-eagle3", "someone/smollm2", "someone/tiny"


@pytest.fixture
def head(hub: HubServer, tmp_path: Path) -> Path:
    """A trained EAGLE-3 head and its target's config on the Hub; the folder that was pushed."""
    folder = asset("eagle3", tmp_path / "remote")
    hub.add(HEAD, folder)
    hub.add(BASE, target_of("eagle3", tmp_path / "target"))
    return folder


@pytest.fixture
def model(hub: HubServer, tiny: Tiny) -> Path:
    """A small MoE with an MTP layer on the Hub."""
    folder = tiny("mimo", mtp=1)
    hub.add(MODEL, folder)
    return folder


def test_a_head_from_its_headers_and_small_tensors(
    hub: HubServer, head: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ckpt_tools.refs.SMALL", "ckpt_tools.drafts.checks.values.SMALL"):
        monkeypatch.setattr(name, 1 << 18)  # the matrices of this head are larger
    ran = command("verify-draft", HEAD, "--target", BASE, "--json")
    assert ran.result["fits"] and ran.result["tensors"] == 15 and ran.result["draft"] == HEAD
    assert hub.served(".safetensors") < (head / "model.safetensors").stat().st_size / 20
    outcomes = {check["name"]: check["outcome"] for check in ran.result["checks"]}
    assert outcomes["lm_head"] == "not checked" and outcomes["draft vocabulary"] == outcomes["values"] == "ok"


def test_preflight_takes_headers_of_a_far_head_and_all_of_one_that_is_here(
    hub: HubServer, head: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ckpt_tools.refs.SMALL", "ckpt_tools.drafts.checks.values.SMALL"):
        monkeypatch.setattr(name, 1 << 18)
    with changed(head / "model.safetensors") as tensors:
        tensors["midlayer.mlp.up_proj.weight"][:] = float("nan")
    hub.add(HEAD, head)
    words = ("preflight", "--target", tmp_path / "target", "--json", "--draft")
    assert "tensor-not-finite" not in command(*words, HEAD).codes
    assert hub.served(".safetensors") < (head / "model.safetensors").stat().st_size / 20
    assert "tensor-not-finite" in command(*words, head, code=1).codes


def test_the_findings_are_those_of_a_local_head(hub: HubServer, head: Path, command: Command) -> None:
    with changed(head / "model.safetensors") as tensors:
        tensors["d2t"] += torch.arange(8192)
        del tensors["midlayer.mlp.up_proj.weight"]
        tensors["norm.weight"][:] = float("nan")
    hub.add(HEAD, head)
    ran = command("verify-draft", HEAD, "--target", BASE, "--json", code=1)
    assert {"d2t-absolute", "tensors-missing", "tensor-not-finite"} <= set(ran.codes)


def test_a_broken_remote_file(hub: HubServer, head: Path, command: Command) -> None:
    (head / "model.safetensors").write_bytes(b"\xff" * 100)
    hub.add(HEAD, head)
    ran = command("verify-draft", HEAD, "--target", BASE, "--json", code=3)
    assert ran.codes == ["file-truncated"]


def test_inspect_fetches_headers_only(hub: HubServer, model: Path, command: Command) -> None:
    remote = command("inspect", MODEL, "--json").result
    local = command("inspect", model, "--json").result
    assert remote.pop("path") == MODEL and local.pop("path") == str(model)
    assert remote == local
    assert hub.requests("GET", "/cdn/") and not list(Path(constants.HF_HUB_CACHE).rglob("models--*/**/*.safetensors"))
    served = hub.served()
    command("inspect", f"hf://{MODEL}@main", "--json")
    assert hub.served() == served, "headers and small files are kept"


def test_the_weights_hash_is_the_same_from_afar(hub: HubServer, model: Path, command: Command) -> None:
    remote = command("inspect", MODEL, "--check", "--json").result["identity"]
    assert remote == command("inspect", model, "--check", "--json").result["identity"] and "weights" in remote


def test_recorded_checksums_hold_from_afar(hub: HubServer, model: Path, command: Command, tmp_path: Path) -> None:
    """Of shards that are not here the Hub states the SHA-256; small files lie in the cache behind links."""
    command("convert", model, tmp_path / "dist")
    command("convert", tmp_path / "dist", tmp_path / "hf", "--checksums")
    hub.add("someone/sums", tmp_path / "hf")
    served = hub.served(".safetensors")
    assert command("inspect", "someone/sums", "--check", "--json").result["checksums"] > 2
    assert hub.served(".safetensors") - served < 2 * (tmp_path / "hf/model.safetensors").stat().st_size
    with changed(tmp_path / "hf" / "model.safetensors") as tensors:
        next(iter(tensors.values())).view(-1)[0] += 1
    hub.add("someone/sums", tmp_path / "hf").commit("main", {}, "another commit")
    assert command("inspect", "someone/sums", "--check", "--json", code=1).codes == ["checksum-differs"]


def test_compare_reads_by_ranges(hub: HubServer, model: Path, command: Command, tmp_path: Path) -> None:
    assert command("compare", MODEL, model, "--json").result["differences"] == []
    other = Path(shutil.copytree(model, tmp_path / "other"))
    with changed(next(other.glob("*.safetensors"))) as tensors:
        name = next(iter(tensors))
        tensors[name].view(-1)[-1] += 1
    hub.add("someone/other", other)
    ran = command("compare", MODEL, "someone/other", "--json", code=1)
    assert [found["name"] for found in ran.result["differences"]] == [name]


def test_configs_only(hub: HubServer, model: Path, command: Command) -> None:
    flags = command("megatron-args", MODEL, "--json").result["flags"]
    assert flags == command("megatron-args", model, "--json").result["flags"]
    assert hub.served(".safetensors") == 0


def test_export_and_registry(hub: HubServer, head: Path, command: Command, tmp_path: Path) -> None:
    command("export-draft", HEAD, tmp_path / "out", "--target", BASE)
    command("export-draft", head, tmp_path / "local", "--target", tmp_path / "target")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "local/model.safetensors").read_bytes()
    command("registry", "add", HEAD, "--target", BASE, "--name", "h", "--registry", tmp_path / "registry")
    assert command("registry", "check", "--registry", tmp_path / "registry", "--json").codes == []


def test_merge(hub: HubServer, model: Path, command: Command, tmp_path: Path) -> None:
    command("extract-draft", model, tmp_path / "head")
    hub.add("someone/mtp", tmp_path / "head")
    command("merge-draft", MODEL, "someone/mtp", tmp_path / "merged")
    assert command("compare", tmp_path / "merged", model, "--json").result["differences"] == []


def test_revisions(hub: HubServer, model: Path, command: Command) -> None:
    first = hub.state.repositories[MODEL].refs["main"]
    hub.state.repositories[MODEL].refs["v1"] = first
    hub.state.repositories[MODEL].commit("main", {}, "emptied", whole=True)
    for revision in ("v1", first):
        assert command("inspect", f"{MODEL}@{revision}", "--json").result["tensors"] > 0
    assert commit_of(resolve(f"{MODEL}@v1", weights=False)) == first
    ran = command("inspect", f"{MODEL}@v2", "--json", code=3)
    assert ran.codes == ["hub-not-found"]


def test_who_may_read(hub: HubServer, model: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.state.repositories[MODEL].private = True
    command("inspect", MODEL)
    hub.add("someone/gated", model, gated=True)
    ran = command("inspect", "someone/gated", "--json", code=4)
    assert ran.codes == ["hub-gated"]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", constants.HF_HUB_CACHE + "-other")
    token = "hf_" + "wrong" * 8
    monkeypatch.setenv("HF_TOKEN", token)
    ran = command("inspect", MODEL, "--json", code=4)
    assert ran.codes == ["hub-not-authorised"] and token not in ran.out
    monkeypatch.delenv("HF_TOKEN")
    assert command("inspect", MODEL, "--json", code=3).codes == ["hub-not-found"]
    assert command("inspect", "someone/nothing", "--json", code=3).codes == ["hub-not-found"]


def test_offline(hub: HubServer, model: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network a whole copy in the cache serves, and nothing is asked."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert command("inspect", MODEL, "--json", code=3).codes == ["hub-unreachable"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(MODEL)
    before = len(hub.state.seen)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = command("inspect", MODEL, "--json").result
    assert found["tensors"] == command("inspect", model, "--json").result["tensors"]
    assert len(hub.state.seen) == before


def test_a_downloaded_copy_is_used(hub: HubServer, model: Path, command: Command, tmp_path: Path) -> None:
    snapshot_download(MODEL)
    served = hub.served(".safetensors")
    command("convert", MODEL, tmp_path / "out")
    assert hub.served(".safetensors") == served


def test_a_head_in_a_torch_file(hub: HubServer, head: Path, command: Command, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(head / "config.json", folder)
    torch.save(load_file(head / "model.safetensors"), folder / "pytorch_model.bin")
    hub.add("someone/old", folder)
    assert command("verify-draft", "someone/old", "--target", BASE, "--json", code=None).result["tensors"] == 15


def test_torch_dist_on_the_hub(hub: HubServer, model: Path, command: Command, tmp_path: Path) -> None:
    command("convert", model, tmp_path / "dist")
    hub.add("someone/dist", tmp_path / "dist")
    found = command("inspect", "someone/dist", "--json").result
    assert found["tensors"] == command("inspect", tmp_path / "dist", "--json").result["tensors"]
    assert hub.served(".distcp") == 0, "metadata tells everything"
    assert tree(resolve("someone/dist")) == tree(tmp_path / "dist")
    assert command("compare", "someone/dist", model, "--json").result["differences"] == []


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    folder = asset("eagle", tmp_path / "head")
    assert resolve_headers(str(folder)) == (folder, True)
    with pytest.raises(NotFound):
        resolve_headers(str(tmp_path / "none"))


def test_a_user_that_is_not_there(command: Command, tmp_path: Path) -> None:
    assert command("inspect", "~nosuchuser/model", "--json", code=3).codes == ["ref-not-found"]
    ran = command("registry", "list", "--registry", "~nosuchuser/heads", "--json", code=3)
    assert ran.codes == ["registry-not-found"]
