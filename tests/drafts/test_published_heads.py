"""Every head of the golden list is recognised, read, and written for SGLang, or refused for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.drafts.export import Options, export_draft
from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError
from tests.golden import draft_heads

HEADS = draft_heads.load()
READ = [name for name, head in HEADS.items() if "kind" in head]
CLASSES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
LAYERS = 94


@pytest.mark.parametrize("name", READ)
def test_it_is_read_and_written_for_sglang(name: str, tmp_path: Path) -> None:
    head = HEADS[name]
    folder = draft_heads.write(tmp_path / "head", head)
    spec = open_draft(folder)
    assert (spec.kind, spec.form, spec.errors) == (head["kind"], head["format"], ())
    assert {entry.source: entry.shape for entry in spec.tensors.values()} == draft_heads.tensors(head)
    target = draft_heads.write_target(tmp_path / "target", head, LAYERS)
    if code := head.get("sglang"):
        with pytest.raises(CkptError) as failure:
            export_draft(folder, tmp_path / "out", target, Options(dry_run=True))
        assert [finding.code for finding in failure.value.findings] == [code]
        return
    result, findings = export_draft(folder, tmp_path / "out", target, Options(dry_run=True))
    assert (result.architecture, result.format) == (CLASSES[head["kind"]], "sglang")
    written = len(draft_heads.tensors(head)) - (head["kind"] == "eagle") + ("fc.bias" in result.made)
    assert result.tensors - ("t2d" in result.made) == written
    assert {"draft-context-short", *filter(None, [head.get("warns")])} <= {finding.code for finding in findings}


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if "refused" in head])
def test_heads_of_other_kinds_are_refused(name: str, tmp_path: Path) -> None:
    head = HEADS[name]
    with pytest.raises(CkptError) as failure:
        open_draft(draft_heads.write(tmp_path / "head", head))
    (finding,) = failure.value.findings
    assert finding.code == head["refused"] and head["config"]["architectures"][0] in finding.actual


def test_what_speculators_norms_can_be_written_for_vllm(tmp_path: Path) -> None:
    """norm_before_residual: SGLang's class cannot express it, speculators can."""
    head = HEADS["RedHatAI/Qwen3-8B-speculator.eagle3"]
    folder = draft_heads.write(tmp_path / "head", head)
    target = draft_heads.write_target(tmp_path / "target", head, 36)
    options = Options(dry_run=True, format="speculators", target_name="Qwen/Qwen3-8B")
    assert export_draft(folder, tmp_path / "out", target, options).result.format == "speculators"


def test_quoted_shapes() -> None:
    """Shapes by the layout equal those that a source quotes."""
    quoted = {name: head for name, head in HEADS.items() if "shapes" in head}
    assert quoted
    for name, head in quoted.items():
        assert draft_heads.tensors(head) == {n: tuple(shape) for n, shape in head["shapes"].items()}, name
