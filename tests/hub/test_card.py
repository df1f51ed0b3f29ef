"""The model card: what it says, that a plot is what the Hub shows, and that a report is of the head that is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from huggingface_hub import ModelCard

from tests.checkpoints import changed
from tests.conftest import Command
from tests.hub.publishing import BASE, NAME, pushed
from tests.hub.server import HubServer
from tests.tune.heads import pair

SVG = "{http://www.w3.org/2000/svg}"
PLOT = "acceptance-by-position.svg"


def test_the_card(hub: HubServer, head: Path, base: str, command: Command) -> None:
    command("push", head, NAME, "--target", base)
    card = ModelCard(pushed(hub)["README.md"].decode())
    fields = card.data.to_dict()
    assert fields["license"] == "apache-2.0" and fields["language"] == "en"
    assert (fields["base_model"], fields["base_model_relation"], fields["library_name"]) == (BASE, "adapter", "sglang")
    assert {"speculative-decoding", "eagle3", "sglang"} <= set(fields["tags"])
    assert "Trained on texts." in card.text and base.partition("@")[2] in card.text
    assert f"--speculative-draft-model-path {NAME}" in card.text and "--speculative-algorithm EAGLE3" in card.text
    assert f"--model-path {BASE}" in card.text and "--speculative-num-draft-tokens 4" in card.text
    assert "| verify-draft | ok |" in card.text and "| no secrets | ok |" in card.text
    assert PLOT not in pushed(hub)
    (head / "README.md").write_bytes(pushed(hub)["README.md"])
    again = command("push", head, NAME, "--target", base, "--json").result
    assert {file["state"] for file in again["files"]} == {"unchanged"}, "a card is written the same again"


@pytest.fixture
def measured(hub: HubServer, tmp_path: Path, command: Command) -> tuple[tuple[object, ...], Path, dict[str, Any]]:
    """The words that publish a small head with its smoke report, the head's folder, and the report, really measured."""
    target, made = pair("eagle3", tmp_path)
    head = tmp_path / "served"
    command("export-draft", made, head, "--target", target, "--target-name", BASE)
    (head / "draft_manifest.json").unlink()  # it would notice a changed file first
    ran = command("smoke", target, head, "--steps", 3, "--max-new-tokens", 8, "--depths", 0, "--json", code=None)
    (tmp_path / "smoke.json").write_text(ran.out)
    words = ("push", head, NAME, "--target", target, "--base-model", BASE, "--license", "mit")
    return (*words, "--smoke", tmp_path / "smoke.json", "--json"), head, ran.result


def test_acceptance_names_its_metric(
    hub: HubServer, measured: tuple[tuple[object, ...], Path, dict[str, Any]], command: Command
) -> None:
    words, _, report = measured
    command(*words)
    text, found = pushed(hub)["README.md"].decode(), report["acceptance"]
    assert (
        f"| accept length (tokens per verification, the target's own included) | {found['accept_length']:.3f} |" in text
    )
    assert f"| accepted drafts per verification | {found['accepted_per_step']:.3f} |" in text
    assert f"{found['verifications']} verifications; steps 3" in text
    assert "--speculative-num-steps 3" in text and "--speculative-num-draft-tokens 4" in text


def test_a_measured_tree_is_served_as_one(
    hub: HubServer, measured: tuple[tuple[object, ...], Path, dict[str, Any]], command: Command, tmp_path: Path
) -> None:
    words, _, report = measured
    report["setting"] |= {"topk": 4, "num_draft_tokens": 16}
    (tmp_path / "smoke.json").write_text(json.dumps(report))
    command(*words)
    text = pushed(hub)["README.md"].decode()
    assert "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16" in text
    assert "steps 3, topk 4, num_draft_tokens 16" in text


def test_the_plot_is_a_file_that_browsers_draw(
    hub: HubServer, measured: tuple[tuple[object, ...], Path, dict[str, Any]], command: Command, tmp_path: Path
) -> None:
    """An image of the repository, referred to by its name; a bar as high as its share and its figure for every position."""
    words, _, report = measured
    report["acceptance"]["by_position"] = [0.8, 0.4, 0.1]
    (tmp_path / "smoke.json").write_text(json.dumps(report))
    command(*words)
    assert f": 80.0%, 40.0%, 10.0%]({PLOT})" in pushed(hub)["README.md"].decode()
    drawing = ElementTree.fromstring(pushed(hub)[PLOT])
    assert drawing.tag == f"{SVG}svg"
    texts = [element.text for element in drawing.iter(f"{SVG}text")]
    assert texts == ["80.0%", "1 or more", "40.0%", "2 or more", "10.0%", "3 or more"]
    bars = [float(bar.attrib["height"]) for bar in drawing.iter(f"{SVG}rect")][1:]
    assert [bar / bars[0] for bar in bars] == pytest.approx([1, 0.5, 0.125], abs=0.01)
    again = command(*words).result
    assert {file["state"] for file in again["files"]} == {"unchanged"}, "a plot is drawn the same again"


def test_a_report_of_another_head(
    hub: HubServer, measured: tuple[tuple[object, ...], Path, dict[str, Any]], command: Command
) -> None:
    """One value of one tensor is enough; both hashes are named and nothing is sent."""
    words, head, report = measured
    with changed(head / "model.safetensors") as tensors:
        tensors["norm.weight"][0] += 1
    finding = command(*words, code=1).finding("report-of-another-head")
    assert report["draft_hash"] in finding["actual"]
    assert "sha256:" in finding["expected"] and report["draft_hash"] not in finding["expected"]
    assert NAME not in hub.state.repositories


@pytest.mark.parametrize("change", ["another kind", "no hash"])
def test_a_report_that_does_not_say_which_head(
    hub: HubServer,
    measured: tuple[tuple[object, ...], Path, dict[str, Any]],
    command: Command,
    tmp_path: Path,
    change: str,
) -> None:
    words, _, report = measured
    report |= {"kind": "mtp", "draft_hash": "sha256:0"} if change == "another kind" else {"draft_hash": ""}
    (tmp_path / "smoke.json").write_text(json.dumps(report))
    assert command(*words, code=1).codes == ["report-of-another-head"]
    (tmp_path / "smoke.json").write_text('{"result": {"kind": "eagle3"}}')
    assert command(*words, code=3).codes == ["report-unreadable"]


def test_a_report_with_another_target(hub: HubServer, command: Command, tmp_path: Path) -> None:
    """The head's manifest knows the weights that it was made for."""
    target, head = pair("eagle3", tmp_path)
    command("export-draft", head, tmp_path / "out", "--target", target, "--target-name", BASE)
    words = ("push", tmp_path / "out", NAME, "--target", target, "--license", "mit")
    words += ("--smoke", tmp_path / "smoke.json", "--json")
    smoke = ("smoke", target, tmp_path / "out", "--steps", 2, "--max-new-tokens", 4, "--depths", 0, "--json")
    (tmp_path / "smoke.json").write_text(command(*smoke, code=None).out)
    command(*words)
    with changed(target / "model.safetensors") as tensors:
        tensors["model.norm.weight"][0] += 1
    (tmp_path / "smoke.json").write_text(command(*smoke, code=None).out)
    finding = command(*words, code=1).finding("report-of-another-target")
    assert finding["expected"] != finding["actual"] and finding["actual"].startswith("weights-sampled-1:")
