"""The local Hub behaves towards the real client as the client's own code expects; without that it proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tests.checkpoints import tree
from tests.hub.repository import git_blob
from tests.hub.server import HubServer

NAME = "someone/model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "deep").mkdir(parents=True)
    (root / "config.json").write_text('{"a": 1}')
    (root / "deep" / "notes.txt").write_text("notes")
    (root / "model.safetensors").write_bytes(bytes(range(256)) * 5000)
    return root


def test_git_ids() -> None:
    """What `git hash-object` prints for an empty file and for "hello"."""
    assert git_blob(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.parametrize("part_size", [1 << 30, 300_000])
def test_upload_and_download(hub: HubServer, folder: Path, part_size: int) -> None:
    hub.state.part_size = part_size
    api = HfApi()
    api.create_repo(NAME, private=True)
    api.upload_folder(repo_id=NAME, folder_path=folder)
    assert hub.received() == (folder / "model.safetensors").stat().st_size
    assert len(hub.requests("PUT")) == (5 if part_size == 300_000 else 1)
    assert tree(Path(snapshot_download(NAME))) == tree(folder)
    assert hub.served(".safetensors") == (folder / "model.safetensors").stat().st_size
    assert api.model_info(NAME).sha == hub.state.repositories[NAME].refs["main"]


def test_nothing_is_sent_twice(hub: HubServer, folder: Path) -> None:
    hub.add(NAME, folder)
    HfApi().upload_folder(repo_id=NAME, folder_path=folder)
    assert hub.received() == 0 and len(hub.state.repositories[NAME].messages) == 2


def test_pull_request(hub: HubServer, folder: Path) -> None:
    hub.add(NAME)
    made = HfApi().upload_folder(repo_id=NAME, folder_path=folder, create_pr=True)
    assert made.pr_revision == "refs/pr/1"
    assert hub.state.repositories[NAME].tree() == {}
    assert Path(hf_hub_download(NAME, "config.json", revision="refs/pr/1")).read_text() == '{"a": 1}'


def test_who_may_see_what(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, folder, private=True)
    hub.add("someone/gated", folder, gated=True)
    with pytest.raises(RevisionNotFoundError):
        snapshot_download(NAME, revision="v9")
    with pytest.raises(GatedRepoError):
        snapshot_download("someone/gated")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RepositoryNotFoundError):
        snapshot_download(NAME)


def test_faults(hub: HubServer, folder: Path) -> None:
    hub.add(NAME, folder)
    hub.fail("drop", "GET", "model.safetensors", times=2, after=100_000)
    hub.fail(503, "GET", "/cdn/")
    with pytest.raises(HfHubHTTPError):  # the client retries connections here, not statuses
        hf_hub_download(NAME, "model.safetensors")
    found = hf_hub_download(NAME, "model.safetensors")
    assert Path(found).read_bytes() == (folder / "model.safetensors").read_bytes()
    assert hub.served(".safetensors") == (folder / "model.safetensors").stat().st_size + 2 * 100_000
    hub.fail("drop", "PUT", "/lfs/")
    (folder / "model.safetensors").write_bytes(b"other" * 1000)
    HfApi().upload_folder(repo_id=NAME, folder_path=folder)
    assert [seen.status for seen in hub.requests("PUT")] == [0, 200]
