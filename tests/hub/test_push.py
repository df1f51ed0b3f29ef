"""push, against a Hub that the real client talks to: what arrives, what is refused before, what a rerun sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, snapshot_download
from safetensors.torch import load_file, save_file

from tests.checkpoints import changed, changed_config, tree
from tests.conftest import Command, Tiny
from tests.drafts.heads import asset
from tests.hub.publishing import NAME, pushed
from tests.hub.server import TOKEN, HubServer
from tests.tune.heads import pair


def test_everything_arrives_in_one_commit(hub: HubServer, head: Path, base: str, command: Command) -> None:
    ran = command("push", head, NAME, "--target", base, "--private", "--json")
    repository = hub.state.repositories[NAME]
    assert repository.private and len(repository.commits) == 2
    files = pushed(hub)
    assert files.keys() == tree(head).keys()
    for name in ("config.json", "model.safetensors"):
        assert files[name] == (head / name).read_bytes()
    assert ran.result["commit"] == repository.refs["main"]
    assert tree(Path(snapshot_download(NAME))) == files


def test_dry_run_sends_nothing(hub: HubServer, head: Path, base: str, command: Command) -> None:
    ran = command("push", head, NAME, "--target", base, "--dry-run", "--json")
    assert NAME not in hub.state.repositories
    assert not hub.requests("POST") and not hub.requests("PUT")
    sizes = {file["path"]: file["nbytes"] for file in ran.result["files"]}
    assert sizes["model.safetensors"] == (head / "model.safetensors").stat().st_size
    assert ran.result["nbytes"] == sum(sizes.values()) and ran.result["commit"] == ""


def test_a_rerun_sends_only_what_is_missing(hub: HubServer, head: Path, base: str, command: Command) -> None:
    command("push", head, NAME, "--target", base)
    first = hub.received()
    assert first == (head / "model.safetensors").stat().st_size
    with changed_config(head) as config:
        config["torch_dtype"] = "bfloat16"
    ran = command("push", head, NAME, "--target", base, "--json")
    states = {file["path"]: file["state"] for file in ran.result["files"]}
    assert states["config.json"] == "changed" and states["model.safetensors"] == "unchanged"
    assert hub.received() == first and len(hub.state.repositories[NAME].commits) == 3
    command("push", head, NAME, "--target", base)
    assert len(hub.state.repositories[NAME].commits) == 3, "nothing changed, nothing committed"


def test_branch_and_pull_request(hub: HubServer, head: Path, base: str, command: Command) -> None:
    command("push", head, NAME, "--target", base, "--revision", "v2")
    assert pushed(hub) == {} and "config.json" in pushed(hub, revision="v2")
    ran = command("push", head, NAME, "--target", base, "--create-pr", "--json")
    assert pushed(hub) == {} and "config.json" in pushed(hub, revision="refs/pr/1")
    assert ran.result["pull_request"].endswith("/discussions/1")
    ran = command("push", head, NAME, "--target", base, "--create-pr", "--revision", "v2", "--json", code=2)
    assert ran.codes == ["pull-request-revision"]


REFUSED = {
    "pickle": lambda root: (root / "optimizer.bin").write_bytes(b"x"),
    "secret": lambda root: (root / "run.sh").write_text(f"export HF_TOKEN=hf_{'a1B2' * 9}\n"),
    "secret-file": lambda root: (root / ".env").write_text("A=1\n"),
    "local-path": lambda root: (root / "args.json").write_text('{"a": {"load": "/home/me/model"}}'),
    "licence-missing": lambda root: (root / "README.md").unlink(),
    "file-truncated": lambda root: os.truncate(root / "model.safetensors", 5000),
    "card-base-model": lambda root: (root / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\n---\n"),
    "card-invalid": lambda root: (root / "README.md").write_text("---\nlicense: [mit\n---\n"),
}


def test_a_card_in_latin_1(hub: HubServer, head: Path, base: str, command: Command) -> None:
    (head / "README.md").write_bytes("---\nlicense: mit\n---\nfür alle\n".encode("latin-1"))
    ran = command("push", head, NAME, "--target", base, "--license", "mit", "--json", code=1)
    assert ran.codes == ["card-invalid"] and NAME not in hub.state.repositories


def test_architectures_that_are_no_list(hub: HubServer, tiny: Tiny, command: Command) -> None:
    model = tiny("qwen3")
    with changed_config(model) as config:
        config["architectures"] = {"a": 1}
    ran = command("push", model, NAME, "--license", "mit", "--json", code=None)
    assert "bug" not in ran.codes


@pytest.mark.parametrize("code", REFUSED)
def test_refused_before_anything_is_sent(hub: HubServer, head: Path, base: str, command: Command, code: str) -> None:
    REFUSED[code](head)
    ran = command("push", head, NAME, "--target", base, "--json", code=None)
    assert ran.code in (1, 3) and code in ran.codes
    assert "a1B2a1B2" not in ran.out, "a secret is never shown"
    assert NAME not in hub.state.repositories and not hub.requests("PUT")


KEY = f"hf_{'a1B2' * 9}"


def metadata(root: Path) -> None:
    path = root / "model.safetensors"
    save_file(load_file(path), path, {"run": f"token\n{KEY}"})


HIDDEN: dict[str, Callable[[Path], object]] = {
    "notes.TXT:2": lambda root: (root / "notes.TXT").write_text(f"a\n{KEY}\n"),
    "run.csv:1": lambda root: (root / "run.csv").write_text(f"{KEY}\n"),
    "picture.png:1": lambda root: (root / "picture.png").write_bytes(b"\x89PNG\0" + KEY.encode() + b"\0"),
    "log.jsonl:3": lambda root: (root / "log.jsonl").write_text(f"\n\n{' ' * (33 << 20)}{KEY} "),
    "edge.dat:2": lambda root: (root / "edge.dat").write_text("\n" + " " * ((1 << 20) - 20) + KEY),
    "model.safetensors:1": metadata,
}


@pytest.mark.parametrize("place", HIDDEN)
def test_secrets_are_looked_for_everywhere(hub: HubServer, head: Path, base: str, command: Command, place: str) -> None:
    HIDDEN[place](head)
    ran = command("push", head, NAME, "--target", base, "--dry-run", "--json", code=1)
    assert ran.finding("secret")["where"] == place and KEY not in ran.out


def test_what_was_not_looked_at_is_said(hub: HubServer, head: Path, base: str, command: Command) -> None:
    (head / "small.gguf").write_bytes(b"GGUF")
    (head / "linked").symlink_to(head.parent)
    ran = command("push", head, NAME, "--target", base, "--dry-run", "--json")
    checks = [(check["name"], check["outcome"], check["detail"]) for check in ran.result["checks"]]
    assert ("no secrets", "ok", "2 files, headers of 1 safetensors files") in checks
    assert ("no secrets", "not checked", "small.gguf") in checks
    assert ran.finding("link-not-sent")["actual"] == "linked"


def test_a_head_that_does_not_fit(hub: HubServer, head: Path, base: str, command: Command) -> None:
    with changed(head / "model.safetensors") as tensors:
        tensors["norm.weight"][:] = float("nan")
    ran = command("push", head, NAME, "--target", base, "--json", code=1)
    assert "tensor-not-finite" in ran.codes and NAME not in hub.state.repositories
    ran = command("push", head, NAME, "--json", code=1)
    assert "target-unknown" in ran.codes
    local = head.parent / "target"
    ran = command(
        "push", asset("eagle", head.parent / "other"), NAME, "--target", local, "--license", "mit", "--json", code=1
    )
    assert "base-model-unknown" in ran.codes


def test_a_whole_model(hub: HubServer, tiny: Tiny, command: Command) -> None:
    model = tiny("qwen3")
    command("push", model, "someone/model", "--license", "apache-2.0")
    card = ModelCard(pushed(hub, "someone/model")["README.md"].decode())
    assert card.data.to_dict()["library_name"] == "transformers" and "base_model" not in card.data.to_dict()
    assert "| weights | `weights-sampled-1:" in card.text


def test_through_the_environment(hub: HubServer, head: Path, base: str) -> None:
    """A process of its own, which knows the Hub and the token by HF_ENDPOINT and HF_TOKEN alone; neither is printed."""
    words = ["push", str(head), NAME, "--target", base]
    code = "import sys; from ckpt_tools.cli import main; sys.argv = ['ckpt-tools', *sys.argv[1:]]; main()"
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "model.safetensors" in pushed(hub)
    assert TOKEN not in ran.stdout + ran.stderr and ran.stderr == ""


def test_writers_publish(hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    """--push-to-hub of every command that writes Hugging Face files: the written folder is what arrives."""
    model, words = tiny("mimo", mtp=1), ("--license", "mit", "--private", "--json")
    hub.add("someone/base", model)
    ran = command("extract-draft", "someone/base", tmp_path / "head", "--push-to-hub", "someone/h", *words)
    assert ran.finding("pushed")["actual"] == hub.state.repositories["someone/h"].refs["main"]
    assert hub.state.repositories["someone/h"].private
    assert "base_model: someone/base" in pushed(hub, "someone/h")["README.md"].decode()
    head = tree(tmp_path / "head")
    assert {name: data for name, data in pushed(hub, "someone/h").items() if name in head} == head
    export = ("export-draft", tmp_path / "head", tmp_path / "exported", "--target", "someone/base")
    command(*export, "--push-to-hub", "someone/e", *words)
    command("merge-draft", model, tmp_path / "head", tmp_path / "merged", "--push-to-hub", "someone/m", *words)
    assert "completeness" in pushed(hub, "someone/m")["README.md"].decode()
    command("convert", model, tmp_path / "dist")
    command("convert", tmp_path / "dist", tmp_path / "hf", "--push-to-hub", "someone/c", *words)
    assert pushed(hub, "someone/c")["config.json"] == (tmp_path / "hf" / "config.json").read_bytes()
    assert len(hub.state.repositories) == 5


def test_writers_refuse_before_they_write(hub: HubServer, tiny: Tiny, command: Command, tmp_path: Path) -> None:
    model, out = tiny("mimo", mtp=1), tmp_path / "out"
    assert command("extract-draft", model, out, "--push-to-hub", "a b/c", "--json", code=2).codes == ["repository-name"]
    assert command("convert", model, out, "--push-to-hub", "a/b", "--json", code=2).codes == ["push-torch-dist"]
    assert not out.exists()
    ran = command("extract-draft", model, out, "--push-to-hub", "a/b", "--license", "mit", "--json", code=1)
    assert ran.codes == ["base-model-unknown"] and out.exists(), "what was written stays"
    command("extract-draft", model, tmp_path / "dry", "--push-to-hub", "a/b", "--dry-run")
    assert "a/b" not in hub.state.repositories


def test_a_tuned_head_is_published(hub: HubServer, command: Command, tmp_path: Path) -> None:
    target, head = pair("eagle3", tmp_path)
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps({"prompt": f"w{i} w4", "response": "w5 w6 w7 w8"}) + "\n" for i in range(4)))
    words = ("tune-draft", target, head, tmp_path / "out", "--samples", samples, "--rounds", 1)
    words += ("--target-name", "someone/base", "--push-to-hub", "someone/tuned", "--license", "mit", "--json")
    ran = command(*words)
    assert ran.finding("pushed")["actual"] == hub.state.repositories["someone/tuned"].refs["main"]
    written = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert pushed(hub, "someone/tuned")["model.safetensors"] == written
