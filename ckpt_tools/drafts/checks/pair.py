"""A head and the target it is checked against, and where every check puts what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...compare import Logical
from ...engine.view import View
from ...errors import CkptError, Finding
from ...mapping.rules import Rule
from ...model import EMBEDDING, HF_COPY, Model, open_model
from ...report import Report
from ...stores.torch_dist.reader import is_torch_dist, open_checkpoint
from ..formats.targets import Target, read_target
from ..servers import SGLANG
from ..spec import DraftSpec
from ..tokenizer import Tokenizer, read_tokenizer

OUTPUT_LAYER = "output_layer.weight"
OK, SKIPPED = "ok", "not checked"


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict to be, and how the server will be started. `headers_only`: large tensors were not downloaded.

    `algorithm` is "" (by the head), "eagle", "eagle3" or "nextn". `steps`, `topk`, `draft_tokens` are None if not given.
    """

    server: str = SGLANG
    strict_target: bool = False
    allow_vocab_padding: bool = False
    allow_prefix_vocab: bool = False
    algorithm: str = ""
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    token_map: Path | None = None
    headers_only: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table; `outcome` is "ok", "note", "warning", "error" or "not checked"."""

    name: str
    outcome: str
    expected: str
    actual: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class TableUse:
    """The embedding or the lm_head: what the head holds, what the server uses. `stored` is "own", "equal" or "absent"."""

    name: str
    stored: str
    served: str
    nbytes: int = 0


@dataclass
class Pair:
    """What is checked. Weights of the target are opened only when a check needs them."""

    spec: DraftSpec
    target: Target
    path: Path
    rules: Rules
    report: Report = field(default_factory=Report)
    checks: list[Check] = field(default_factory=list)
    tables: list[TableUse] = field(default_factory=list)

    @property
    def sglang(self) -> bool:
        return self.rules.server == SGLANG

    def passed(self, name: str, expected: object, actual: object) -> None:
        self.checks.append(Check(name, OK, str(expected), str(actual)))

    def skipped(self, name: str, why: str) -> None:
        self.checks.append(Check(name, SKIPPED, "", why))

    def found(self, name: str, finding: Finding) -> None:
        """A line and its finding."""
        self.report.findings.append(finding)
        self.checks.append(Check(name, finding.severity, finding.expected, finding.actual, finding.code))

    @cached_property
    def model(self) -> Model | None:
        """The target with its weights; None if only its config is here."""
        try:
            return open_model(self.path)
        except CkptError:
            return None

    @cached_property
    def logical(self) -> Logical | None:
        return Logical(self.model, mtp=0) if self.model else None

    @cached_property
    def target_tokenizer(self) -> Tokenizer | None:
        return read_tokenizer(self.target.root)

    @cached_property
    def own_tokenizer(self) -> Tokenizer | None:
        """The one beside the head, if the head brings one."""
        return read_tokenizer(self.spec.config_path.parent)

    def target_table(self, output: bool) -> View | None:
        """The target's embedding, or its output layer (the embedding again where they are tied)."""
        if self.model is None or self.logical is None:
            return None
        rules = {rule.spellings[0].template: rule for rule in self.model.table.rules if not rule.axes}
        rule: Rule = rules[EMBEDDING] if not output or OUTPUT_LAYER not in rules else rules[OUTPUT_LAYER]
        return self.logical.view(rule.hf[0])

    def close(self) -> None:
        if "logical" in self.__dict__ and self.logical is not None:
            self.logical.close()


def open_target(path: Path, name: str = "") -> Target:
    """A Hugging Face folder, a config.json, or a torch-dist directory that carries its config."""
    return read_target(open_checkpoint(path).root / HF_COPY if is_torch_dist(path) else path, name)
