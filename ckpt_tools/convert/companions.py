"""What travels beside the weights: which files are there, which usual ones are not, whether the model's own code is whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ..model import Model
from ..report import Report, listed
from ..stores.model_code import code_findings
from ..stores.sidecars import sidecars
from .options import HF, Options

TOKENIZERS = frozenset(("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"))
TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
TEMPLATES = frozenset((CHAT_TEMPLATE, "chat_template.json"))
USUAL = ("generation_config.json", "special_tokens_map.json", TOKENIZER_CONFIG)


@dataclass(frozen=True, slots=True)
class Companions:
    """`files` are relative to `folder`; `absent` are the usual files of a release that are not there."""

    folder: Path
    files: tuple[Path, ...]
    absent: tuple[str, ...]


def companions_of(model: Model, options: Options, to: str, report: Report) -> Companions:
    """The files to copy. A missing tokenizer is a warning.

    Raises CkptError where a Hugging Face folder would be without a file of its own code, or a name leads out of the folder.
    """
    folder = model.config_path.parent
    if options.hf_config is not None and not options.hf_config.is_dir():
        _warn_of_tokenizer(folder, report)
        return Companions(folder, (), (*USUAL, CHAT_TEMPLATE))
    files = tuple(sidecars(folder))
    names = {str(path) for path in files}
    if not TOKENIZERS & names:
        _warn_of_tokenizer(folder, report)
    for finding in code_findings(folder):
        harmless = to != HF and finding.code == "auto-map-missing"  # Megatron never looks at it
        report.findings.append(replace(finding, severity="warning") if harmless else finding)
    report.raise_errors()
    absent = [name for name in USUAL if name not in names]
    if not TEMPLATES & names and not _has_template(folder):
        absent.append(CHAT_TEMPLATE)
    return Companions(folder, files, tuple(absent))


def _has_template(folder: Path) -> bool:
    """Older releases keep the chat template in the tokenizer's config."""
    try:
        return bool(json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, RecursionError, AttributeError):
        return False


def _warn_of_tokenizer(folder: Path, report: Report) -> None:
    report.warn(
        "no-tokenizer",
        "no tokenizer came with the config",
        where=str(folder),
        expected="one of " + listed(sorted(TOKENIZERS)),
        actual="none",
        fix="name a folder with the tokenizer as --hf-config, or copy it by hand",
    )
