"""Files that travel with the weights, and edits of config.json that touch nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.families.edits import REMOVED, dtype_edits, edited_config, mtp_edits, quantisation_removals
from ckpt_tools.stores.sidecars import MANIFEST, WEIGHT_SUFFIXES, copy_sidecars, sidecars

TRAVEL = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "modeling_toy.py",
    "README.md",
    "LICENSE",
    "assets/figure.png",
    "encoding/deep/config.json",
    "figures/ckpt-tools.json",
    "some.index.txt",
    "1_Pooling/config.json",
]
STAY = [
    "config.json",
    MANIFEST,
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "original/consolidated.00.pth",
    ".git/HEAD",
    ".cache/huggingface/x.metadata",
    "__pycache__/modeling_toy.pyc",
    "deep/__pycache__/x.pyc",
    *(f"weights{suffix}" for suffix in sorted(WEIGHT_SUFFIXES)),
    *(f"deep/weights{suffix}" for suffix in sorted(WEIGHT_SUFFIXES)),
]


def fill(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() + b"\r\n\xff")
    return root


def test_everything_but_weights_travels_byte_for_byte(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "a", TRAVEL + STAY), tmp_path / "b"
    target.mkdir()
    assert sorted(copy_sidecars(source, target)) == sorted(TRAVEL)
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()) == sorted(TRAVEL)
    assert all((target / name).read_bytes() == (source / name).read_bytes() for name in TRAVEL)


def test_links_into_a_cache_are_followed_and_dangling_ones_left(tmp_path: Path) -> None:
    fill(tmp_path / "blobs", ["abc123", "def456"])
    snapshot = tmp_path / "snapshots/main"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").symlink_to("../../blobs/abc123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/def456")
    (snapshot / "vocab.json").symlink_to("../../blobs/nowhere")
    target = tmp_path / "out"
    target.mkdir()
    assert copy_sidecars(snapshot, target) == ["tokenizer.json"]
    assert not (target / "tokenizer.json").is_symlink()
    assert (target / "tokenizer.json").read_bytes() == (tmp_path / "blobs/abc123").read_bytes()


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert list(sidecars(tmp_path)) == []


ORIGINAL = """{
    "zeta": 1e-06, "model_type" : "toy",
  "num_nextn_predict_layers": 1,
\t"name": "h\u00e9 \\u00e9", "nested": {"b": [1,2], "a": null}, "torch_dtype": "bfloat16"
}""".encode()


@pytest.mark.parametrize("edits", [{}, {("num_nextn_predict_layers",): 1}, {("nested", "a"): None}])
def test_a_config_that_does_not_change_keeps_its_bytes(edits: dict[tuple[str, ...], Any]) -> None:
    assert edited_config(ORIGINAL, edits) is ORIGINAL


def test_an_edit_keeps_order_and_every_other_value() -> None:
    edited = edited_config(ORIGINAL, {("num_nextn_predict_layers",): 0, ("nested", "b"): [3], ("new",): "x"})
    before, after = json.loads(ORIGINAL), json.loads(edited)
    assert list(after) == [*before, "new"]
    assert list(after["nested"]) == ["b", "a"]
    assert after == {**before, "num_nextn_predict_layers": 0, "nested": {"b": [3], "a": None}, "new": "x"}
    assert "h\u00e9 \u00e9".encode() in edited
    assert edited.endswith(b"}\n")


def test_removing_a_field_keeps_the_rest_and_an_absent_one_changes_nothing() -> None:
    edited = json.loads(edited_config(ORIGINAL, {("model_type",): REMOVED, ("nested", "a"): REMOVED}))
    before = json.loads(ORIGINAL)
    assert edited == {**{k: v for k, v in before.items() if k != "model_type"}, "nested": {"b": [1, 2]}}
    assert edited_config(ORIGINAL, {("absent",): REMOVED}) is ORIGINAL
    config = {"quantization_config": {}, "text_config": {"quantization_config": {}, "x": 1}}
    assert json.loads(edited_config(json.dumps(config).encode(), quantisation_removals(config))) == {
        "text_config": {"x": 1}
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda v: st.lists(v, max_size=3),
)


@given(config=st.dictionaries(st.text(), values), key=st.text(), value=values)
def test_one_edit_changes_one_value(config: dict[str, Any], key: str, value: Any) -> None:
    original = json.dumps(config).encode()
    again = json.loads(edited_config(original, {(key,): value}))
    assert again == {**config, key: value}
    assert list(again) == list({**config, key: value})


FIELD = "mtp_num_hidden_layers"


@pytest.mark.parametrize(
    ("config", "count", "expected"),
    [
        ({}, 0, {}),
        ({}, 1, {(FIELD,): 1}),
        ({"text_config": {}}, 1, {("text_config", FIELD): 1}),
        ({FIELD: 1}, 0, {(FIELD,): 0}),
        ({"num_nextn_predict_layers": 2}, 1, {("num_nextn_predict_layers",): 1}),
        ({FIELD: 1, "text_config": {FIELD: 1}}, 2, {(FIELD,): 2, ("text_config", FIELD): 2}),
        ({FIELD: None}, 1, {(FIELD,): 1}),
    ],
)
def test_mtp_edits(config: dict[str, Any], count: int, expected: dict[tuple[str, ...], int]) -> None:
    assert mtp_edits(config, count, FIELD) == expected


def test_dtype_edits() -> None:
    config = {"dtype": "bfloat16", "text_config": {"torch_dtype": "bfloat16", "other": 1}}
    assert dtype_edits(config, "float32") == {("dtype",): "float32", ("text_config", "torch_dtype"): "float32"}
    assert dtype_edits({}, "float32") == {}
