"""verify-draft over public failures of vocabularies and their tables, each on a small head built for it (G, D4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints import changed
from tests.command import Ran
from tests.drafts.conftest import Run, severities
from tests.drafts.heads import eagle, eagle3, target, write_tokenizer


def test_g4_zeros_are_right_where_nothing_is_reduced(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head", draft_vocab_size=32)
    for stored in (True, False):
        with changed(head / "model.safetensors") as tensors:
            tensors.pop("d2t", None)
            tensors.pop("t2d", None)
            if stored:
                tensors |= {"d2t": torch.zeros(32, dtype=torch.int64), "t2d": torch.ones(32, dtype=torch.bool)}
        ran = verify(head, model)
        (line,) = [check for check in ran.result["checks"] if check["name"] == "draft vocabulary"]
        assert "identity mapping" in line["actual"] and line["outcome"] == "ok"


def test_g2_the_prefix_can_be_meant(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        tensors |= {"d2t": torch.zeros(8, dtype=torch.int64), "t2d": torch.arange(32) < 8}
    found = verify(head, model, code=1).finding("d2t-default")
    assert "0..7" in found["what"] and "--allow-prefix-vocab" in found["fix"]
    assert severities(verify(head, model, "--allow-prefix-vocab"))["d2t-default"] == "warning"


def test_absolute_ids_without_t2d(verify: Run, tmp_path: Path) -> None:
    """Known by always rising and leaving the vocabulary; a map whose ids stay inside is not accused."""
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        del tensors["t2d"]
        tensors["d2t"] += torch.arange(8)
    assert "d2t-absolute" in verify(head, model, code=1).codes
    with changed(head / "model.safetensors") as tensors:
        tensors["d2t"] = torch.arange(8)  # ids 0, 2, 4, ... as offsets
    assert verify(head, model).result["fits"]


def test_g11_lengths_and_the_token_map(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        tensors["lm_head.weight"] = torch.randn(32, 8).bfloat16()
    found = verify(head, model, code=1).finding("d2t-length")
    assert found["expected"].startswith("32") and found["actual"] == "8"
    one = eagle(tmp_path / "one")
    for name, ids, code in (("good", [0, 5, 31], 0), ("range", [0, 40], 1), ("twice", [3, 3], 1)):
        torch.save(ids, tmp_path / f"{name}.pt")
        ran = verify(one, model, "--token-map", tmp_path / f"{name}.pt", code=code)
        assert {"range": "d2t-range", "twice": "d2t-duplicates"}.get(name) in (None, *ran.codes)
    (tmp_path / "no.pt").write_bytes(b"no")
    assert verify(one, model, "--token-map", tmp_path / "no.pt", code=3).codes == ["token-map-unreadable"]


def stored_table(tmp_path: Path, name: str, table: torch.Tensor, **changes: Any) -> Path:
    head = eagle3(tmp_path, **changes)
    with changed(head / "model.safetensors") as tensors:
        tensors[name] = table
    return head


def table_of(ran: Ran, name: str) -> dict[str, Any]:
    (table,) = [table for table in ran.result["tables"] if table["name"] == name]
    return dict(table)


@pytest.mark.parametrize("tied", [True, False])
def test_g6_embeddings(verify: Run, tmp_path: Path, tied: bool) -> None:
    """Initialised and saved: refused; a copy: told; absent: fine."""
    model = target(tmp_path / "target", weights=True, tie_word_embeddings=tied)
    embedding = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    random = stored_table(tmp_path / "random", "embed_tokens.weight", 0.02 * torch.randn(32, 8).bfloat16())
    found = verify(random, model, code=1).finding("embed-mismatch")
    assert "max |difference|" in found["actual"] and "0 of the first 32 rows equal" in found["actual"]
    ran = verify(stored_table(tmp_path / "copy", "embed_tokens.weight", embedding), model)
    assert table_of(ran, "embedding") == {
        "name": "embedding",
        "stored": "equal to the target's",
        "served": "the target's",
        "nbytes": 512,
    }
    assert table_of(verify(eagle3(tmp_path / "none"), model), "embedding")["stored"] == "absent"


def test_g6_a_trained_embedding_is_for_vllm(verify: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target", weights=True)
    head = stored_table(tmp_path / "head", "embed_tokens.weight", torch.randn(32, 8).bfloat16())
    assert "embed-mismatch" in verify(head, model, code=1).codes
    assert verify(head, model, "--server", "vllm").result["fits"]


def test_g6_without_the_targets_weights(verify: Run, tmp_path: Path) -> None:
    head = stored_table(tmp_path / "head", "embed_tokens.weight", torch.randn(32, 8).bfloat16())
    assert severities(verify(head, target(tmp_path / "target")))["table-unchecked"] == "warning"


def test_g9_whose_lm_head(verify: Run, tmp_path: Path) -> None:
    """EAGLE-3 keeps its own; EAGLE-1 and a head with `draft_vocab_size: null` get the target's in its place."""
    model = target(tmp_path / "target", weights=True)
    assert table_of(verify(eagle3(tmp_path / "own"), model), "lm_head") == {
        "name": "lm_head",
        "stored": "own",
        "served": "the head's",
        "nbytes": 128,
    }
    null = eagle3(tmp_path / "null", draft_vocab_size=None)
    assert "lm-head-mismatch" in verify(null, model, code=1).codes
    one = eagle(tmp_path / "one")
    with changed(one / "model.safetensors") as tensors:
        tensors["lm_head.weight"] = load_file(model / "model.safetensors")["lm_head.weight"].clone()
    assert table_of(verify(one, model), "lm_head")["stored"] == "equal to the target's"
    with changed(one / "model.safetensors") as tensors:
        tensors["lm_head.weight"][3] += 1
    found = verify(one, model, code=1).finding("lm-head-mismatch")
    assert "max |difference| 1, 31 of the first 32 rows equal" in found["actual"]


@pytest.mark.parametrize("rows", [32, 8])
def test_g7_no_lm_head(verify: Run, tmp_path: Path, rows: int) -> None:
    head = eagle3(tmp_path / "head", draft_vocab_size=rows)
    with changed(head / "model.safetensors") as tensors:
        del tensors["lm_head.weight"]
    ran = verify(head, target(tmp_path / "target"), code=1)
    assert str(rows) in ran.finding("lm-head-missing")["expected"]
    assert "lm_head.weight" in ran.finding("tensors-never-set")["expected"]


def test_d4_padding_rows(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target", vocab_size=40), eagle3(tmp_path / "head", vocab_size=36)
    one = eagle(tmp_path / "one", vocab_size=36)
    for folder in (model, head, one):
        write_tokenizer(folder, 33)
    found = verify(head, model, code=1).finding("vocab-padding-only")
    assert "33" in found["what"] and "--allow-vocab-padding" in found["fix"]
    assert (found["expected"], found["actual"]) == ("40 rows", "36 rows")
    assert severities(verify(head, model, "--allow-vocab-padding"))["vocab-padding-only"] == "warning"
    assert "vocab-size" in verify(one, model, "--allow-vocab-padding", code=1).codes
    (head / "tokenizer.json").unlink()
    assert "vocab-size" in verify(head, model, "--allow-vocab-padding", code=1).codes


def test_d4_another_tokenizer_of_the_same_size(verify: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    write_tokenizer(model, 32)
    write_tokenizer(head, 32, t7="other")
    found = verify(head, model, code=1).finding("tokenizer-mismatch")
    assert "id 7" in found["what"] and "'other'" in found["actual"]


MERGES_OF_LATIN = "caf\xe9 s".encode("latin-1")
BROKEN_TOKENIZERS: dict[str, dict[str, Any]] = {
    "merges in another encoding": {"vocab.json": {"a": 0}, "merges.txt": MERGES_OF_LATIN},
    "an added id that is no number": {
        "vocab.json": {"a": 0},
        "tokenizer_config.json": {"added_tokens_decoder": {"x": {}}},
    },
    "added tokens as a list": {"vocab.json": {"a": 0}, "tokenizer_config.json": {"added_tokens_decoder": [1]}},
    "an added token without content": {
        "vocab.json": {"a": 0},
        "tokenizer_config.json": {"added_tokens_decoder": {"1": {}}},
    },
    "added ids of two kinds": {"vocab.json": {"a": 0}, "added_tokens.json": {"b": "1", "c": 2}},
    "ids of two kinds": {"tokenizer.json": {"model": {"vocab": {"a": 0, "b": "1"}, "merges": []}}},
}


@pytest.mark.parametrize("kind", BROKEN_TOKENIZERS)
def test_a_tokenizer_that_is_none_is_said(kind: str, verify: Run, tmp_path: Path) -> None:
    head, model = eagle3(tmp_path / "head"), target(tmp_path / "target")
    for name, content in BROKEN_TOKENIZERS[kind].items():
        (model / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert verify(head, model, code=1).codes == ["tokenizer-unreadable"]
