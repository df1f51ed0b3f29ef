"""Which iteration of a directory is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.errors import ExitCode, NotFound
from ckpt_tools.report import Report
from ckpt_tools.stores.torch_dist.reader import TRACKER, is_torch_dist, iteration_directory

from .make import with_tracker


@pytest.mark.parametrize(
    ("said", "chosen"),
    [("release", "release"), ("5", "iter_0000005"), (" 5\n", "iter_0000005"), ("0000005", "iter_0000005")],
)
def test_the_tracker_says(said: str, chosen: str, tmp_path: Path) -> None:
    root, report = with_tracker(tmp_path, said, "release", "iter_0000005", "iter_0000010"), Report()
    assert iteration_directory(root, report) == root / chosen
    assert report.findings == []
    assert is_torch_dist(root)


@pytest.mark.parametrize(
    "said",
    ["7", "release", "iter_5", "", "garbage text", "../elsewhere", "/", "-5", "²", "1" * 5000, b"\xff\xfe\0", "5\0"],
)
def test_the_tracker_names_what_is_not_there(said: str | bytes, tmp_path: Path) -> None:
    root = with_tracker(tmp_path, said, "iter_0000005", "iter_0000010")
    with pytest.raises(NotFound) as caught:
        iteration_directory(root, Report())
    finding = caught.value.findings[0]
    assert (finding.code, caught.value.exit_code) == ("iteration-not-found", ExitCode.NOT_FOUND)
    assert finding.where == str(root / TRACKER)
    assert finding.actual == "iter_0000005, iter_0000010"


def test_no_tracker_and_one_iteration(tmp_path: Path) -> None:
    root, report = with_tracker(tmp_path, None, "iter_0000005"), Report()
    (root / "notes").mkdir()
    assert iteration_directory(root, report) == root / "iter_0000005"
    assert [finding.code for finding in report.findings] == ["tracker-absent"]
    assert report.errors == []
    assert is_torch_dist(root)


def test_no_tracker_and_two_iterations(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        iteration_directory(with_tracker(tmp_path, None, "iter_0000005", "release"), Report())
    finding = caught.value.findings[0]
    assert (finding.code, finding.actual) == ("iteration-not-found", "iter_0000005, release")


def test_one_iteration_named_directly_wins_over_the_tracker(tmp_path: Path) -> None:
    root, report = with_tracker(tmp_path, "10", "iter_0000005", "iter_0000010"), Report()
    assert iteration_directory(root / "iter_0000005", report) == root / "iter_0000005"
    assert report.findings == []


def test_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "iter_0000005").mkdir()
    assert not is_torch_dist(tmp_path)
    assert not is_torch_dist(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="no iteration directory"):
        iteration_directory(tmp_path, Report())
