"""Samples from files: every form, and what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.errors import CkptError, UsageProblem
from ckpt_tools.tune import run as runs
from ckpt_tools.tune.run import Reading, tune
from ckpt_tools.tune.samples import Sample, read_samples

from .jobs import job

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ m.role + ' ' + m.content + ' ' }}{% endfor %}"
)
WORDS = ["user", "assistant", "a", "b", "c\u2028d"]
GOOD = {"prompt_ids": [1, 2], "response_ids": [3]}


def tokenizer(template: str | None = None) -> Any:
    """Words by their place in WORDS; 9 is unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({**{word: i for i, word in enumerate(WORDS)}, "?": 9}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template)


def read(folder: Path, *rows: Any, using: Any = None, vocab: int = 10) -> list[Sample]:
    file = folder / "samples.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows))
    return read_samples(file, using, vocab)


def messages(*said: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in said]}


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """JSON lets U+2028 and U+0085 stand in a string."""
    row = {"prompt": "a b", "response": "c\u2028d a", "note": "\x85"}
    assert read(tmp_path, row, GOOD, using=tokenizer()) == [Sample((2, 3, 4, 2), 2), Sample((1, 2, 3), 2)]


def test_messages_go_through_the_template(tmp_path: Path) -> None:
    row = messages(("user", "a b"), ("assistant", "b"))
    assert read(tmp_path, row, using=tokenizer(TEMPLATE)) == [Sample((0, 2, 3, 1, 3), 3)]


@pytest.mark.parametrize("ids", [[1, 10], [-1, 3]])
@pytest.mark.parametrize("side", ["prompt_ids", "response_ids"])
def test_tokens_that_the_target_lacks(side: str, ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(CkptError) as caught:
        read(tmp_path, GOOD, {**GOOD, side: ids})
    found = caught.value.findings[0]
    assert (found.code, found.expected) == ("sample-malformed", "ids from 0 to 9")
    assert "line 2" in found.where
    with pytest.raises(CkptError, match="another model"):
        read(tmp_path, {"prompt": "a b", "response": "zzz"}, using=tokenizer(), vocab=9)


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (messages(("user", "a"), ("assistant", "b")), None, "a tokenizer with a chat template"),
        ({"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}, TEMPLATE, "content"),
        (messages(("user", None), ("assistant", "b")), TEMPLATE, "content"),
        (messages(("user", [{"type": "text"}]), ("assistant", "b")), TEMPLATE, "chat template take"),
        (messages(("odd", "a"), ("assistant", "b")), TEMPLATE, "no such role"),
        ({"messages": ["a", "b"]}, TEMPLATE, "content"),
        ({"prompt": "a", "response": "\\ud800"}, None, "sample-malformed"),
        ("[" * 100_000, None, "JSON"),
        ("1", None, "messages"),
    ],
)
def test_what_is_no_sample(row: Any, template: str | None, said: str, tmp_path: Path) -> None:
    text = row if isinstance(row, str) else json.dumps(row).replace("\\\\ud800", "\\ud800")
    with pytest.raises(CkptError, match=said) as caught:
        read(tmp_path, "", text, using=tokenizer(template))
    assert caught.value.findings[0].code == "sample-malformed"
    assert caught.value.findings[0].fix


def test_texts_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CkptError, match="brings no tokenizer"):
        read(tmp_path, {"prompt": "a", "response": "b"})


def test_the_ids_of_samples_are_those_of_the_target(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"prompt_ids": [3, 4], "response_ids": [64]}')
    with pytest.raises(CkptError, match="ids from 0 to 63"):
        tune(job(folders["eagle3"], tmp_path, reading=Reading(samples=file)))
    monkeypatch.setattr(runs, "load_target", None)
    with pytest.raises(UsageProblem, match="samples-held-out"):
        tune(job(folders["eagle3"], tmp_path, reading=Reading(samples=file, held_out=2)))
