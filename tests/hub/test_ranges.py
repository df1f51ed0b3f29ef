"""Converting and extracting straight from the Hub: the bytes that come, the bytes that do not, and failures on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from ckpt_tools.refs import edges, ranges
from ckpt_tools.refs import headers as headers_of
from tests.checkpoints import assert_same, hf_tensors, megatron_tensors, tree
from tests.conftest import Command, Tiny
from tests.hub.server import HubServer

MODEL = "someone/model"
SHARD = "/cdn/.*safetensors"


@pytest.fixture
def publish(hub: HubServer, tiny: Tiny) -> Callable[..., Path]:
    """Put a tiny model on the Hub; returns the folder that it came from."""

    def made(family: str, **options: object) -> Path:
        folder = tiny(family, **options)
        hub.add(MODEL, folder)
        return folder

    return made


def headers(folder: Path) -> int:
    return sum(8 + int.from_bytes(path.open("rb").read(8), "little") for path in folder.glob("*.safetensors"))


def on_disk(folder: Path) -> int:
    """Bytes that a folder's own files really take: holes take none."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", {}),
        ("mimo", {"mtp": 1}),
        ("qwen3_moe", {}),
        ("deepseek_v3", {"mtp": 1}),
        ("qwen3_next", {"mtp": 1, "shards": 3}),
    ],
)
def test_the_same_bytes_as_from_a_local_copy(
    publish: Callable[..., Path], command: Command, tmp_path: Path, family: str, options: dict[str, int]
) -> None:
    folder = publish(family, **options)
    command("convert", folder, tmp_path / "local")
    ran = command("convert", MODEL, tmp_path / "remote", "--verify", "--json")
    assert ran.result["source"] == MODEL and ran.result["verified"]
    assert_same(megatron_tensors(tmp_path / "remote"), megatron_tensors(tmp_path / "local"))
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_every_byte_comes_once(hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    """The weights cross the wire once, and no copy of them is kept."""
    folder = publish("qwen3", hidden=256, ffn=512, vocab=3000)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    command("convert", MODEL, tmp_path / "out")
    assert stored <= hub.served(".safetensors") <= stored + (ranges_first() * len(list(folder.glob("*.safetensors"))))
    cache = Path(constants.HF_HUB_CACHE)
    assert on_disk(cache / "ckpt-tools-headers") < stored / 10
    assert not list((cache / "models--someone--model").rglob("*.safetensors"))


def ranges_first() -> int:
    from ckpt_tools.refs.headers import FIRST

    return FIRST


def test_extract_fetches_the_head_alone(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    folder = publish("mimo", mtp=1, layers=12, hidden=256, ffn=512, vocab=3000)
    head = sum(t.numel() * t.element_size() for name, t in hf_tensors(folder).items() if "mtp" in name)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    command("extract-draft", MODEL, tmp_path / "remote")
    first = ranges_first() * len(list(folder.glob("*.safetensors")))
    assert head <= hub.served(".safetensors") <= head + max(first, headers(folder))
    assert head + first < stored / 3, "the bound says something"
    command("extract-draft", folder, tmp_path / "local")
    remote, local = tree(tmp_path / "remote"), tree(tmp_path / "local")
    assert remote.pop("draft_manifest.json") and local.pop("draft_manifest.json")
    assert remote == local


def test_extract_from_torch_dist_fetches_the_head_alone(
    hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Of its frames come the edges, which say where a tensor lies, and the bytes of the head's; small ones come twice."""
    folder = tiny("mimo", mtp=1, layers=12, hidden=256, ffn=512, vocab=3000)
    command("convert", folder, tmp_path / "dist")
    hub.add("someone/dist", tmp_path / "dist")
    head = sum(t.numel() * t.element_size() for name, t in hf_tensors(folder).items() if "mtp" in name)
    stored = sum(path.stat().st_size for path in (tmp_path / "dist").rglob("*.distcp"))
    command("extract-draft", "someone/dist", tmp_path / "remote")
    served = hub.served(".distcp")
    chunks = len(hf_tensors(tmp_path / "remote"))
    most = edges.HEAD + edges.TAIL + edges.NEAR
    assert head <= served <= head + chunks * most and head + chunks * most < stored / 3, "the bound says something"
    command("extract-draft", "someone/dist", tmp_path / "again")
    assert hub.served(".distcp") - served <= served - chunks * edges.TAIL, "edges are kept"
    command("extract-draft", tmp_path / "dist", tmp_path / "local")
    names = ("model.safetensors", "config.json")
    assert [(tmp_path / "remote" / n).read_bytes() for n in names] == [
        (tmp_path / "local" / n).read_bytes() for n in names
    ]


def test_an_interrupted_conversion_of_torch_dist_continues(
    hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path
) -> None:
    """Edges that are fetched again do not make it another source."""
    folder = tiny("qwen3", hidden=256, ffn=512, vocab=3000, layers=6)
    command("convert", folder, tmp_path / "dist", "--layout", "per-layer")
    hub.add("someone/dist", tmp_path / "dist")
    stored = sum(path.stat().st_size for path in (tmp_path / "dist").rglob("*.distcp"))
    hub.state.cut_after = stored // 2
    ran = command("convert", "someone/dist", tmp_path / "out", "--json", code=3)
    assert ran.codes == ["hub-unreachable"] and (tmp_path / "out.partial").is_dir()
    hub.state.cut_after = None
    shutil.rmtree(Path(constants.HF_HUB_CACHE) / "ckpt-tools-headers")
    ran = command("convert", "someone/dist", tmp_path / "out", "--json")
    assert ran.result["resumed"] > 0
    command("convert", tmp_path / "dist", tmp_path / "local")
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_fp8_from_the_hub(hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """Scales are read block by block; each small tensor comes in one piece."""
    folder = tiny("deepseek_v3", mtp=1, fp8=(16, 24), shards=2)
    hub.add(MODEL, folder)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    command("convert", folder, tmp_path / "local")
    command("convert", MODEL, tmp_path / "remote")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")
    assert hub.served(".safetensors") < 3 * stored + ranges_first()
    assert len(hub.requests("GET", SHARD)) < 1.3 * len(hf_tensors(folder))


@pytest.mark.parametrize("kind", ["drop", 503, 429])
def test_failures_are_retried(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path, kind: str | int
) -> None:
    folder = publish("qwen3", hidden=256, ffn=512, vocab=3000)
    hub.fail(kind, "GET", SHARD, times=3)
    hub.fail("drop", "GET", SHARD, times=2, after=1000)
    command("convert", MODEL, tmp_path / "remote")
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_a_broken_range_continues_where_it_broke(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    publish("qwen3", hidden=256, ffn=512, vocab=3000)
    command("inspect", MODEL)
    before = hub.served(".safetensors")
    command("convert", MODEL, tmp_path / "first")
    whole = hub.served(".safetensors") - before
    hub.fail("drop", "GET", SHARD, times=4, after=2000)
    command("convert", MODEL, tmp_path / "second")
    assert hub.served(".safetensors") - before == 2 * whole


def test_giving_up_at_once_leaves_nothing(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    publish("qwen3")
    command("inspect", MODEL)
    hub.fail("drop", "GET", SHARD, times=10**6)
    ran = command("convert", MODEL, tmp_path / "out", "--json", code=3)
    assert ran.codes == ["hub-unreachable"] and not list(tmp_path.glob("out*"))
    assert len(hub.requests("GET", SHARD)) < 8 * ranges.ATTEMPTS + 10


def test_an_interrupted_conversion_continues(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    """The network fails half-way: what is written stays, and the next run fetches only the rest."""
    folder = publish("qwen3", hidden=256, ffn=512, vocab=3000, layers=6)
    command("inspect", MODEL)
    before = hub.served(".safetensors")
    command("convert", MODEL, tmp_path / "whole")
    whole = hub.served(".safetensors") - before
    hub.state.cut_after = before + whole + whole // 2
    ran = command("convert", MODEL, tmp_path / "out", "--json", code=3)
    assert ran.codes == ["hub-unreachable"] and "continues" in ran.findings[0]["fix"]
    assert (tmp_path / "out.partial").is_dir() and not (tmp_path / "out").exists()
    hub.state.cut_after = None
    shutil.rmtree(Path(constants.HF_HUB_CACHE) / "ckpt-tools-headers")  # made again, the headers are the same files
    ran = command("convert", MODEL, tmp_path / "out", "--json")
    assert whole / 4 < ran.result["resumed"] < whole
    fetched = hub.served(".safetensors") - before - whole
    assert fetched < whole * 1.5, "finished tasks are not fetched again"
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_an_expired_signature_is_renewed(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    folder = publish("qwen3")
    hub.state.signature_uses = 3
    command("convert", MODEL, tmp_path / "remote")
    assert len(hub.state.signatures) > 2
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")
    hub.fail(403, "GET", SHARD, times=10**6)
    assert command("convert", MODEL, tmp_path / "other", "--json", code=4).codes == ["hub-not-authorised"]


def test_a_server_without_ranges_is_refused(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    publish("qwen3")
    command("inspect", MODEL)
    hub.fail("ignore-range", "GET", SHARD, times=10**6)
    assert command("convert", MODEL, tmp_path / "out", "--json", code=1).codes == ["range-refused"]


def test_the_token_stays_with_the_hub(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    """Large files come from storage at another address, which must not see the token; without storage it is needed."""
    publish("qwen3")
    hub.state.repositories[MODEL].private = True
    command("convert", MODEL, tmp_path / "out")
    assert not any(seen.authorised for seen in hub.requests("GET", "/cdn/"))
    hub.state.redirect = False
    ranges.ranges_of.cache_clear()
    command("convert", MODEL, tmp_path / "again")
    assert all(seen.authorised for seen in hub.requests("GET", "/resolve/.*safetensors"))
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_a_commit_is_read_to_its_end(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    """The branch moves while the model is read: the commit that was resolved first is what is converted."""
    folder = publish("qwen3")
    command("inspect", MODEL)
    commit = hub.state.repositories[MODEL].refs["main"]
    found = json.loads(next(Path(constants.HF_HUB_CACHE).rglob("*.remote.json")).read_text())
    assert found["commit"] == commit
    assert all(commit in seen.path for seen in hub.requests("HEAD", "safetensors"))
    command("convert", MODEL, tmp_path / "remote")
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_ranges_are_read_side_by_side(
    hub: HubServer, publish: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    """Also into a single file, and on few cores: threads wait for the network."""
    publish("qwen3", hidden=256, ffn=512, vocab=3000)
    hub.state.delay = 0.05  # more than it takes to ask for the next one
    command("convert", MODEL, tmp_path / "out")
    assert hub.state.most_active >= 4


def empty(marker: Path) -> None:
    marker.write_bytes(b"")


def unreadable(marker: Path) -> None:
    marker.unlink()
    marker.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {"empty": empty, "removed": Path.unlink, "unreadable": unreadable}


@pytest.mark.parametrize("damage", DAMAGES)
def test_holes_are_never_read_as_zeros(
    publish: Callable[..., Path], command: Command, tmp_path: Path, damage: str
) -> None:
    """What says where the bytes are is lost: the folder itself is refused, and naming the repository makes it again."""
    folder = publish("qwen3")
    command("inspect", MODEL)
    (marker,) = Path(constants.HF_HUB_CACHE).rglob("*.remote.json")
    holes = marker.with_name(marker.name.removesuffix(ranges.MARKER))
    DAMAGES[damage](marker)
    ranges.ranges_of.cache_clear()
    ran = command("convert", holes, tmp_path / "zeros", "--json", code=1)
    assert ran.codes == ["hub-headers-damaged"] and not (tmp_path / "zeros").exists()
    command("convert", MODEL, tmp_path / "remote")
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_a_download_that_is_removed_again(publish: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    """`hf cache delete` takes the files that headers were linked to."""
    folder = publish("qwen3")
    snapshot_download(MODEL)
    command("inspect", MODEL)
    shutil.rmtree(Path(constants.HF_HUB_CACHE) / "models--someone--model")
    command("convert", MODEL, tmp_path / "remote")
    command("convert", folder, tmp_path / "local")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_another_process_makes_the_same_folder(
    publish: Callable[..., Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is faster between the last look and the rename."""
    publish("qwen3")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        if path.name == "new":
            shutil.copytree(path, target, symlinks=True)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert command("inspect", MODEL, "--json").result["tensors"] > 0


def test_the_disk_is_not_the_network(
    publish: Callable[..., Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("qwen3")

    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(headers_of, "_write_header", full)
    ran = command("inspect", MODEL, "--json", code=3)
    assert ran.codes == ["io"] and ran.findings[0]["what"] == os.strerror(errno.ENOSPC)
