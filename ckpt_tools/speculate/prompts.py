"""What is decoded: user messages through the target's chat template, or token ids as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CkptError, NotFound, error
from ..refs import expanded
from .target import Target

BUILTIN = "builtin"
# Ordinary requests of several kinds; none is from a training set that is known to us.
MESSAGES = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and say how fast it is.",
    "My train leaves at 14:35 and the ride takes 2 hours and 50 minutes. When do I arrive?",
    "Give me a shopping list for a lentil soup for four people.",
    "What is the difference between a virus and a bacterium?",
    "Write a short, friendly message that moves a meeting from Tuesday to Thursday.",
    "Tell me a story about a clock that runs backwards.",
    "How do I find out which process uses most memory on Linux?",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`shown` is what reports call it, `ids` what the target reads."""

    shown: str
    ids: list[int]


def read_prompts(source: str) -> list[Any]:
    """`builtin`, or a file: a JSON list of messages or of lists of token ids, or one message per line. Raises NotFound."""
    if source == BUILTIN:
        return list(MESSAGES)
    path = expanded(source)
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
        problem = "" if found and isinstance(found, list) and all(map(_usable, found)) else "no list of prompts"
    except (OSError, ValueError) as failure:
        problem = str(failure)
    if problem:
        raise error(
            NotFound,
            "prompts-unreadable",
            "the prompts cannot be read",
            where=str(path),
            expected="a JSON list of messages (or of lists of token ids), or a text file with one message per line",
            actual=problem,
            fix=f"--prompts {BUILTIN} has some",
        )
    return list(found)


def _usable(entry: Any) -> bool:
    ids = isinstance(entry, list) and len(entry) > 1 and all(type(token) is int and token >= 0 for token in entry)
    return ids or (isinstance(entry, str) and bool(entry.strip()))


class Texts:
    """The target's tokenizer, where it has one."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tokenizer = self._load(target.facts.root)

    @staticmethod
    def _load(folder: Path) -> Any:
        """None for a folder without a tokenizer."""
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            return None
        from transformers import AutoTokenizer

        load: Any = AutoTokenizer.from_pretrained
        return load(folder, trust_remote_code=False)

    def prompt(self, entry: Any) -> Prompt:
        """Raises CkptError for a message without a tokenizer, and for ids that the target does not have."""
        if isinstance(entry, list):
            return Prompt(" ".join(map(str, entry[:16])), self._known(entry))
        if self.tokenizer is None:
            raise error(
                CkptError,
                "tokenizer-missing",
                "the target brings no tokenizer",
                where=str(self.target.facts.root),
                expected="tokenizer.json beside the model",
                actual="none",
                fix="put the tokenizer there, or give prompts as lists of token ids",
            )
        if getattr(self.tokenizer, "chat_template", None):
            message = [{"role": "user", "content": entry}]
            ids = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer(entry)["input_ids"]
        return Prompt(entry, self._known(ids))

    def _known(self, ids: list[int]) -> list[int]:
        if max(ids) >= self.target.vocab_size:
            raise error(
                CkptError,
                "prompt-token-unknown",
                "a prompt holds a token that the target does not have",
                expected=f"ids below {self.target.vocab_size}",
                actual=str(max(ids)),
                fix="the prompts or the tokenizer belong to another model",
            )
        return list(ids)

    def text(self, ids: list[int]) -> str:
        if self.tokenizer is None:
            return "".join(f" {token}" for token in ids)
        return str(self.tokenizer.decode(ids))

    @property
    def stop(self) -> frozenset[int]:
        """Tokens that end a text: those of generation_config.json, else of the config."""
        settings = getattr(self.target.model, "generation_config", None)
        ends = getattr(settings, "eos_token_id", None)
        if ends is None:
            ends = getattr(self.target.config, "eos_token_id", None)
        return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
