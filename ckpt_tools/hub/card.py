"""The model card: metadata through huggingface_hub's ModelCard, and one section that is written anew at every push."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..drafts.servers import SGLANG, VLLM
from ..drafts.spec import EAGLE, EAGLE3, MTP
from ..errors import CkptError, error
from ..report import Report
from .acceptance import section
from .markdown import table
from .subject import HEAD, Subject

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

CARD = "README.md"
BEGIN, END = "<!-- ckpt-tools: begin -->", "<!-- ckpt-tools: end -->"
# The relations that the Hub knows: adapter, finetune, merge, quantized. A head is weights that need their base model.
RELATIONS = ("adapter", "finetune", "merge", "quantized")
RELATION = {HEAD: "adapter"}
LIBRARY = {HEAD: "sglang"}
ALGORITHM = {MTP: "EAGLE", EAGLE: "EAGLE", EAGLE3: "EAGLE3"}  # SGLang's --speculative-algorithm; NEXTN means EAGLE
METHOD = {EAGLE: "eagle", EAGLE3: "eagle3"}  # vLLM's speculative_config.method
STEPS = 3
KINDS = {MTP: "MTP head", EAGLE: "EAGLE head", EAGLE3: "EAGLE-3 head"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card says. `base_model` is a Hub id, `base_commit` the commit that was verified against ("" if unknown)."""

    repository: str
    subject: Subject
    base_model: str = ""
    base_commit: str = ""
    relation: str = ""
    license: str = ""
    smoke: Mapping[str, Any] = field(default_factory=dict)


def open_card(existing: str) -> ModelCard:
    """What the author wrote, or an empty card. Raises CkptError for metadata that cannot be read."""
    from huggingface_hub import ModelCard

    try:
        return ModelCard(existing if existing.startswith("---") else f"---\n{{}}\n---\n{existing}")
    except Exception as problem:  # yaml's errors and the library's own share no base
        raise error(
            CkptError,
            "card-invalid",
            "the metadata of the card cannot be read",
            where=CARD,
            expected="YAML between two lines of ---",
            actual=str(problem).splitlines()[0],
            fix="correct it, or remove the file: a card is written then",
        ) from problem


def stated_by(card: ModelCard) -> dict[str, Any]:
    """The fields of a card's metadata that its author set."""
    fields: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return {name: value for name, value in fields.items() if value is not None}


def render(card: ModelCard, facts: Facts, report: Report) -> str:
    """The card's text: what its author wrote stays, the metadata is completed, our section is replaced."""
    from huggingface_hub import ModelCardData

    stated = stated_by(card)
    wanted = metadata(facts)
    _check_base(stated.get("base_model"), facts, report)
    tags = list(dict.fromkeys([*(stated.get("tags") or []), *wanted.pop("tags")]))
    data = ModelCardData(**{**wanted, **stated, "tags": tags})
    ours = f"{BEGIN}\n{body(facts)}\n{END}"
    text = card.text.lstrip("\n")
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        text = before + ours + rest.partition(END)[2]
    elif text.strip():
        text = f"{text.rstrip()}\n\n{ours}\n"
    else:
        text = f"# {facts.repository.rpartition('/')[2]}\n\n{ours}\n"
    return f"---\n{data.to_yaml()}\n---\n{text}"


def _check_base(stated: object, facts: Facts, report: Report) -> None:
    names = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    if names and facts.base_model and facts.base_model not in names:
        report.error(
            "card-base-model",
            "the card names another base model",
            where=CARD,
            expected=facts.base_model,
            actual=", ".join(map(str, names)),
            fix="correct the card, or name the target that the head was made for",
        )


def metadata(facts: Facts) -> dict[str, Any]:
    """Fields of the card that its author did not set."""
    head = facts.subject.what == HEAD
    tags = ["ckpt-tools"]
    if facts.subject.kind:
        tags = [
            "speculative-decoding",
            facts.subject.kind,
            *(["draft-model"] if head else []),
            *facts.subject.servers,
            *tags,
        ]
    fields: dict[str, Any] = {
        "base_model": facts.base_model or None,
        "base_model_relation": (facts.relation or RELATION.get(facts.subject.what, "finetune"))
        if facts.base_model
        else None,
        "library_name": LIBRARY.get(facts.subject.what, "transformers"),
        "license": facts.license or None,
        "pipeline_tag": "text-generation",
    }
    return {**{name: value for name, value in fields.items() if value}, "tags": tags}


def body(facts: Facts) -> str:
    """The section between the markers."""
    parts = [_what(facts), _serving(facts), section(facts.smoke), _identity(facts), _checks(facts)]
    return "\n\n".join(part for part in parts if part)


def _what(facts: Facts) -> str:
    subject = facts.subject
    size = f"{subject.tensors} tensors, {subject.nbytes:,} bytes"
    if subject.what != HEAD:
        inside = f" with an {KINDS[MTP]} inside" if subject.kind else ""
        return f"A model of architecture `{subject.architecture}` ({size}){inside}."
    link = f"[{facts.base_model}](/{facts.base_model})"
    commit = f" at commit `{facts.base_commit}`" if facts.base_commit else ""
    return f"An {KINDS[subject.kind]} (`{subject.architecture}`, {size}) for speculative decoding with {link}{commit}."


def _serving(facts: Facts) -> str:
    lines = serving_lines(facts)
    return (
        "## Serving\n\n" + "\n\n".join(f"{name}:\n```bash\n{line}\n```" for name, line in lines.items())
        if lines
        else ""
    )


def serving_lines(facts: Facts) -> dict[str, str]:
    """Command lines of the servers that load the head, by server; none where nothing was verified."""
    subject = facts.subject
    setting = facts.smoke.get("setting", {})
    steps, topk = int(setting.get("steps") or STEPS), int(setting.get("topk") or 1)
    tokens = int(setting.get("num_draft_tokens") or steps + 1)
    target = facts.base_model if subject.what == HEAD else facts.repository
    found = {}
    if SGLANG in subject.servers:
        words = [
            f"python -m sglang.launch_server --model-path {target}",
            f"--speculative-algorithm {ALGORITHM[subject.kind]}",
        ]
        if subject.what == HEAD:
            words.append(f"--speculative-draft-model-path {facts.repository}")
        words.append(
            f"--speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {tokens}"
        )
        found["SGLang"] = " \\\n  ".join(words)
    if VLLM in subject.servers and subject.kind in METHOD:
        config = {"method": METHOD[subject.kind], "model": facts.repository, "num_speculative_tokens": steps}
        found["vLLM"] = f"vllm serve {target} \\\n  --speculative-config '{json.dumps(config)}'"
    return found


def _identity(facts: Facts) -> str:
    hashes = {k.removesuffix("_hash"): v for k, v in facts.subject.identity.items() if k.endswith("_hash") and v}
    rows = [(name, f"`{value}`") for name, value in hashes.items()]
    whose = "its target" if facts.subject.what == HEAD else "the model"
    return f"## Identity of {whose}\n\n{table(('what', 'hash'), rows)}" if rows else ""


def _checks(facts: Facts) -> str:
    rows = [(check.name, check.outcome, check.detail) for check in facts.subject.checks]
    return (
        f"## Checked before publishing\n\n{table(('check', 'outcome', 'detail'), rows)}\n\nBy ckpt-tools {__version__}."
    )
