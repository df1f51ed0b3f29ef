"""verify-draft over public failures, each on a small head built for it (F, G, D4, E4, L2, L6, L8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ckpt_tools.drafts.identity import identify, record
from ckpt_tools.drafts.manifest import MANIFEST, Manifest, Provenance, TargetRef, write_manifest
from ckpt_tools.model import open_model
from tests.checkpoints import changed, changed_config
from tests.command import Ran
from tests.conftest import Command, Tiny
from tests.drafts.heads import eagle, eagle3, target, write_config, write_tokenizer

Run = Callable[..., Ran]


@pytest.fixture
def run(command: Command) -> Run:
    def call(head: Path, model: Path, *words: object, code: int = 0) -> Ran:
        return command("verify-draft", head, "--target", model, "--json", *words, code=code)

    return call


def severities(ran: Ran) -> dict[str, str]:
    return {finding["code"]: finding["severity"] for finding in ran.findings}


# --- F: shape and config


def narrow(tmp_path: Path, embedding: bool = True, stated: bool = True, columns: int = 24) -> Path:
    """An EAGLE-3 head of width 6 for a target of width 8."""
    head = eagle3(tmp_path / "head", wide=8, hidden_size=6, **({"target_hidden_size": 8} if stated else {}))
    with changed(head / "model.safetensors") as tensors:
        if embedding:
            tensors["embed_tokens.weight"] = torch.randn(32, 6).bfloat16()
        tensors["fc.weight"] = torch.randn(6, columns).bfloat16()
    return head


def test_f1_a_narrower_eagle3_head(run: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    assert run(narrow(tmp_path / "a"), model).result["fits"]
    ran = run(narrow(tmp_path / "b", columns=18), model, code=1)
    assert (ran.finding("fc-shape")["expected"], ran.finding("fc-shape")["actual"]) == ("[6, 24]", "[6, 18]")
    ran = run(narrow(tmp_path / "c", embedding=False), model, code=1)
    assert "6" in ran.finding("embed-required")["expected"] and "8" in ran.finding("embed-required")["expected"]
    assert severities(run(narrow(tmp_path / "d", stated=False), model))["target-hidden-inferred"] == "warning"
    assert "hidden-size" in run(eagle(tmp_path / "e", hidden_size=6, num_attention_heads=4), model, code=1).codes


def test_l8_said_in_inputs(run: Run, tmp_path: Path) -> None:
    found = run(eagle(tmp_path / "head", hidden_size=6), target(tmp_path / "target"), code=1).finding("hidden-size")
    assert (found["expected"], found["actual"]) == ("16 inputs (2x8)", "12 inputs (2x6)")


def test_f2_the_algorithm(run: Run, tmp_path: Path) -> None:
    head, model = eagle(tmp_path / "head"), target(tmp_path / "target")
    ran = run(head, model, "--algorithm", "eagle3", code=1)
    assert "looks like EAGLE-1/2" in ran.finding("algorithm")["what"]
    assert run(head, model, "--algorithm", "eagle").result["kind"] == "eagle"
    assert "algorithm" in run(eagle3(tmp_path / "three"), model, "--algorithm", "eagle", code=1).codes


def test_f3_the_target_itself(run: Run, tmp_path: Path, shared_tiny: Tiny) -> None:
    """Also through a link. A target that has MTP layers is its own head."""
    model = target(tmp_path / "target", weights=True, num_hidden_layers=2)
    (tmp_path / "link").symlink_to(model)
    for head in (model, tmp_path / "link"):
        found = run(head, model, code=1).finding("not-a-draft-head")
        assert "no fc, no MTP layer, 2 ordinary layers" in found["actual"]
    folder = shared_tiny("mimo")
    ran = run(folder, folder, "--algorithm", "nextn")
    assert ran.result["fits"] and ran.result["kind"] == "mtp"


def test_f4_near_matches(run: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    found = run(eagle3(tmp_path / "a", architectures=["LlamaForCausalLMEagel3"]), model, code=1).finding("architecture")
    assert found["expected"] == '["LlamaForCausalLMEagle3"]' and "LlamaForCausalLMEagle3" in found["fix"]
    for wrong in ([], None, "LlamaForCausalLMEagle3"):
        head = eagle3(tmp_path / f"b{wrong}", architectures=wrong)
        assert "architecture" in run(head, model, code=1).codes


@pytest.mark.parametrize(
    ("ids", "outcome"),
    [
        ([1, 17, 32], "ok"),
        (None, "ok"),
        ([2, 18, 33], "aux-convention-unclear"),
        ([0, 16, 31], "aux-convention-unclear"),
        ([1, 18, 33], "aux-convention-unclear"),
        ([5, 10, 20], "ok"),
        ([1, 17, 37], "aux-range"),
        ([1, 17, 35], "aux-range"),
        ([1, 17, 17], "aux-order"),
    ],
)
def test_f6_which_layer(run: Run, tmp_path: Path, ids: list[int] | None, outcome: str) -> None:
    """36 layers: SGLang's ids name outputs, its default [2, 18, 33] names inputs."""
    nested = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    ran = run(
        eagle3(tmp_path / "head", **nested),
        target(tmp_path / "target", num_hidden_layers=36),
        code=int(outcome in ("aux-range", "aux-order")),
    )
    (line,) = [check for check in ran.result["checks"] if check["name"] == "aux layers"]
    assert outcome in (line["code"], line["outcome"])
    if outcome == "ok" and ids != [5, 10, 20]:
        assert ran.result["aux_boundaries"] == [2, 18, 33] and ran.result["aux_ids"] == [1, 17, 32]


def test_f8_four_layers_and_the_last_boundary(run: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")

    def with_ids(name: str, ids: list[int], aux: int) -> Path:
        return eagle3(tmp_path / name, aux=aux, eagle_config={"eagle_aux_hidden_state_layer_ids": ids})

    assert run(with_ids("a", [1, 3, 5, 8], 4), model).result["fits"]
    assert "fc-shape" in run(with_ids("b", [1, 3, 5, 8], 3), model, code=1).codes
    last = with_ids("c", [1, 5, 11], 3)
    assert "before the final norm" in run(last, model, code=1).finding("aux-range")["what"]
    (line,) = [c for c in run(last, model, "--server", "vllm").result["checks"] if c["name"] == "aux layers"]
    assert line["outcome"] == "ok" and "before the final norm" in line["actual"]


def test_f8_norm_before_fc(run: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target")
    head = eagle3(tmp_path / "head", norm_before_fc=True)
    assert "norm-flag" in run(head, model, code=1).codes
    with changed(head / "model.safetensors") as tensors:
        tensors["input_norm.weight"] = torch.randn(24).bfloat16()
    assert run(head, model).result["fits"]
    with changed_config(head) as config:
        del config["norm_before_fc"]
    assert "norm-flag" in run(head, model, code=1).codes


def test_f10_context(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head", max_position_embeddings=256)
    found = run(head, model, code=1).finding("draft-context-short")
    assert "4096" in found["expected"] and found["actual"] == "256"
    assert severities(run(head, model, "--server", "vllm"))["draft-context-short"] == "warning"
    assert run(eagle3(tmp_path / "longer", max_position_embeddings=8192), model).result["fits"]


def test_f11_rope(run: Run, tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    model = target(tmp_path / "target", rope_scaling=llama3, rope_theta=500000.0)
    assert severities(run(eagle3(tmp_path / "none"), model))["rope-differs"] == "warning"
    old = {"type": "llama3", **{k: int(v) for k, v in llama3.items() if k != "rope_type"}}
    same = eagle3(tmp_path / "same", rope_scaling=old, rope_theta=500000)
    assert "rope-differs" not in run(same, model).codes


# --- G: vocabulary maps, embedding, lm_head


def test_g4_zeros_are_right_where_nothing_is_reduced(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head", draft_vocab_size=32)
    for stored in (True, False):
        with changed(head / "model.safetensors") as tensors:
            tensors.pop("d2t", None)
            tensors.pop("t2d", None)
            if stored:
                tensors |= {"d2t": torch.zeros(32, dtype=torch.int64), "t2d": torch.ones(32, dtype=torch.bool)}
        ran = run(head, model)
        (line,) = [check for check in ran.result["checks"] if check["name"] == "draft vocabulary"]
        assert "identity mapping" in line["actual"] and line["outcome"] == "ok"


def test_g2_the_prefix_can_be_meant(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        tensors |= {"d2t": torch.zeros(8, dtype=torch.int64), "t2d": torch.arange(32) < 8}
    found = run(head, model, code=1).finding("d2t-default")
    assert "0..7" in found["what"] and "--allow-prefix-vocab" in found["fix"]
    assert severities(run(head, model, "--allow-prefix-vocab"))["d2t-default"] == "warning"


def test_absolute_ids_without_t2d(run: Run, tmp_path: Path) -> None:
    """Known by always rising and leaving the vocabulary; a map whose ids stay inside is not accused."""
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        del tensors["t2d"]
        tensors["d2t"] += torch.arange(8)
    assert "d2t-absolute" in run(head, model, code=1).codes
    with changed(head / "model.safetensors") as tensors:
        tensors["d2t"] = torch.arange(8)  # ids 0, 2, 4, ... as offsets
    assert run(head, model).result["fits"]


def test_g11_lengths_and_the_token_map(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    with changed(head / "model.safetensors") as tensors:
        tensors["lm_head.weight"] = torch.randn(32, 8).bfloat16()
    found = run(head, model, code=1).finding("d2t-length")
    assert found["expected"].startswith("32") and found["actual"] == "8"
    one = eagle(tmp_path / "one")
    for name, ids, code in (("good", [0, 5, 31], 0), ("range", [0, 40], 1), ("twice", [3, 3], 1)):
        torch.save(ids, tmp_path / f"{name}.pt")
        ran = run(one, model, "--token-map", tmp_path / f"{name}.pt", code=code)
        assert {"range": "d2t-range", "twice": "d2t-duplicates"}.get(name) in (None, *ran.codes)
    (tmp_path / "no.pt").write_bytes(b"no")
    assert run(one, model, "--token-map", tmp_path / "no.pt", code=3).codes == ["token-map-unreadable"]


def stored_table(tmp_path: Path, name: str, table: torch.Tensor, **changes: Any) -> Path:
    head = eagle3(tmp_path, **changes)
    with changed(head / "model.safetensors") as tensors:
        tensors[name] = table
    return head


def table_of(ran: Ran, name: str) -> dict[str, Any]:
    (table,) = [table for table in ran.result["tables"] if table["name"] == name]
    return dict(table)


@pytest.mark.parametrize("tied", [True, False])
def test_g6_embeddings(run: Run, tmp_path: Path, tied: bool) -> None:
    """Initialised and saved: refused; a copy: told; absent: fine."""
    model = target(tmp_path / "target", weights=True, tie_word_embeddings=tied)
    embedding = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    random = stored_table(tmp_path / "random", "embed_tokens.weight", 0.02 * torch.randn(32, 8).bfloat16())
    found = run(random, model, code=1).finding("embed-mismatch")
    assert "max |difference|" in found["actual"] and "0 of the first 32 rows equal" in found["actual"]
    ran = run(stored_table(tmp_path / "copy", "embed_tokens.weight", embedding), model)
    assert table_of(ran, "embedding") == {
        "name": "embedding",
        "stored": "equal to the target's",
        "served": "the target's",
        "nbytes": 512,
    }
    assert table_of(run(eagle3(tmp_path / "none"), model), "embedding")["stored"] == "absent"


def test_g6_a_trained_embedding_is_for_vllm(run: Run, tmp_path: Path) -> None:
    model = target(tmp_path / "target", weights=True)
    head = stored_table(
        tmp_path / "head", "embed_tokens.weight", torch.randn(32, 8).bfloat16(), has_own_embed_tokens=True
    )
    assert "embed-mismatch" in run(head, model, code=1).codes
    assert run(head, model, "--server", "vllm").result["fits"]


def test_g6_without_the_targets_weights(run: Run, tmp_path: Path) -> None:
    head = stored_table(tmp_path / "head", "embed_tokens.weight", torch.randn(32, 8).bfloat16())
    assert severities(run(head, target(tmp_path / "target")))["table-unchecked"] == "warning"


def test_g9_whose_lm_head(run: Run, tmp_path: Path) -> None:
    """EAGLE-3 keeps its own; EAGLE-1 and a head with `draft_vocab_size: null` get the target's in its place."""
    model = target(tmp_path / "target", weights=True)
    assert table_of(run(eagle3(tmp_path / "own"), model), "lm_head") == {
        "name": "lm_head",
        "stored": "own",
        "served": "the head's",
        "nbytes": 128,
    }
    null = eagle3(tmp_path / "null", draft_vocab_size=None)
    assert "lm-head-mismatch" in run(null, model, code=1).codes
    one = eagle(tmp_path / "one")
    with changed(one / "model.safetensors") as tensors:
        tensors["lm_head.weight"] = load_file(model / "model.safetensors")["lm_head.weight"].clone()
    assert table_of(run(one, model), "lm_head")["stored"] == "equal to the target's"
    with changed(one / "model.safetensors") as tensors:
        tensors["lm_head.weight"][3] += 1
    found = run(one, model, code=1).finding("lm-head-mismatch")
    assert "max |difference| 1, 31 of the first 32 rows equal" in found["actual"]


@pytest.mark.parametrize("rows", [32, 8])
def test_g7_no_lm_head(run: Run, tmp_path: Path, rows: int) -> None:
    head = eagle3(tmp_path / "head", draft_vocab_size=rows)
    with changed(head / "model.safetensors") as tensors:
        del tensors["lm_head.weight"]
    ran = run(head, target(tmp_path / "target"), code=1)
    assert str(rows) in ran.finding("lm-head-missing")["expected"]
    assert "lm_head.weight" in ran.finding("tensors-never-set")["expected"]


# --- D4, E4


def test_d4_padding_rows(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target", vocab_size=40), eagle3(tmp_path / "head", vocab_size=36)
    one = eagle(tmp_path / "one", vocab_size=36)
    for folder in (model, head, one):
        write_tokenizer(folder, 33)
    found = run(head, model, code=1).finding("vocab-padding-only")
    assert "33" in found["what"] and "--allow-vocab-padding" in found["fix"]
    assert (found["expected"], found["actual"]) == ("40 rows", "36 rows")
    assert severities(run(head, model, "--allow-vocab-padding"))["vocab-padding-only"] == "warning"
    assert "vocab-size" in run(one, model, "--allow-vocab-padding", code=1).codes
    (head / "tokenizer.json").unlink()
    assert "vocab-size" in run(head, model, "--allow-vocab-padding", code=1).codes


def test_d4_another_tokenizer_of_the_same_size(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target"), eagle3(tmp_path / "head")
    write_tokenizer(model, 32)
    write_tokenizer(head, 32, t7="other")
    found = run(head, model, code=1).finding("tokenizer-mismatch")
    assert "id 7" in found["what"] and "'other'" in found["actual"]


QUANTISED = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize(
    ("ignored", "missing"),
    [
        (["model.mtp_layers.0*"], None),
        (["model.mtp_layers.0"], None),
        (["re:.*mtp_layers.*"], None),
        (["model.mtp_layers.0.self_attn*", "model.mtp_layers.0.mlp*"], "model.mtp_layers.0.input_proj"),
        ([], "model.mtp_layers.0.mlp.down_proj"),
    ],
)
def test_e4_the_exclude_list(run: Run, tiny: Tiny, ignored: list[str], missing: str | None) -> None:
    """A bf16 MTP layer in a quantised target: the list must name every module of it."""
    folder = tiny("mimo")
    with changed_config(folder) as config:
        config["quantization_config"] = {**QUANTISED, "ignore": ignored}
    ran = run(folder, folder, code=int(missing is not None))
    if missing:
        found = ran.finding("quant-exclude")
        assert f'"{missing}"' in found["fix"] and found["fix"].startswith("add to ignore")
    else:
        assert "quant-exclude" not in ran.codes


def test_e4_listed_but_quantised(run: Run, tiny: Tiny) -> None:
    folder = tiny("mimo")
    with changed_config(folder) as config:
        config["quantization_config"] = {**QUANTISED, "ignore": ["model.mtp_layers.0*"]}
    name = "model.mtp_layers.0.mlp.down_proj.weight"
    with changed(folder / "model.safetensors") as tensors:
        tensors[name + "_scale"] = torch.ones(1)
    ran = run(folder, folder, code=1)
    assert name.removesuffix(".weight") in ran.finding("quant-exclude")["actual"]


# --- L2, L6


def recorded(head: Path, model: Path) -> None:
    """A manifest as export-draft leaves it."""
    found = open_model(model)
    reference = TargetRef(ref="org/model", identity=record(identify(found, "sampled")))
    made = Provenance(source="run", source_format="sglang", trained=False, tensors=1)
    write_manifest(
        head,
        Manifest(
            written_by="test",
            format="sglang",
            kind="eagle3",
            architecture="LlamaForCausalLMEagle3",
            target=reference,
            provenance=made,
            files={},
        ),
    )


def test_l2_the_target_moved(run: Run, tmp_path: Path) -> None:
    model, head = target(tmp_path / "target", weights=True), eagle3(tmp_path / "head")
    write_tokenizer(model, 32)
    assert "target-not-recorded" in run(head, model, "--strict-target", code=1).codes
    recorded(head, model)
    ran = run(head, model, "--strict-target")
    (line,) = [check for check in ran.result["checks"] if check["name"] == "recorded target"]
    assert line["actual"] == "architecture, tokenizer, weights equal" and ran.codes == []
    with changed(model / "model.safetensors") as tensors:
        tensors["model.layers.3.mlp.up_proj.weight"][0, 0] += (
            1e-3 + tensors["model.layers.3.mlp.up_proj.weight"][0, 0].abs()
        )
    assert severities(run(head, model)) == {"target-weights-changed": "warning"}
    assert severities(run(head, model, "--strict-target", code=1)) == {"target-weights-changed": "error"}
    write_tokenizer(model, 31)
    assert severities(run(head, model, code=1))["target-tokenizer-changed"] == "error"


def test_l2_another_architecture(run: Run, tmp_path: Path) -> None:
    """Whatever else fits: the field is named."""
    model, head = target(tmp_path / "target", weights=True), eagle3(tmp_path / "head")
    recorded(head, model)
    other = target(tmp_path / "other", intermediate_size=24)
    found = run(head, other, code=1).finding("target-arch-changed")
    assert "intermediate_size" in found["what"] and ("16" in found["expected"] and "24" in found["actual"])
    assert (
        "target-weights-unchecked"
        in run(head, write_config(tmp_path / "config", json.loads((model / "config.json").read_text()))).codes
    )
    (head / MANIFEST).write_text("{")
    assert run(head, model, code=3).codes == ["manifest-unreadable"]


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [((3, 1, 4), True), ((3, 1, 3), False), ((3, 2, 5), True), ((0, 1, 1), False), ((3, 1, None), True)],
)
def test_l6_three_numbers(run: Run, tmp_path: Path, numbers: tuple[int | None, ...], fits: bool) -> None:
    words = [
        word
        for name, number in zip(("--steps", "--topk", "--draft-tokens"), numbers, strict=True)
        if number is not None
        for word in (name, number)
    ]
    ran = run(eagle3(tmp_path / "head"), target(tmp_path / "target"), *words, code=int(not fits))
    assert ("spec-args" in ran.codes) == (not fits)
    if numbers == (3, 1, 3):
        assert ran.finding("spec-args")["expected"].startswith("4 draft tokens")


def test_l6_one_layer_many_steps(run: Run, shared_tiny: Tiny) -> None:
    folder = shared_tiny("mimo")
    assert severities(run(folder, folder, "--steps", 3))["mtp-layer-reused"] == "note"


# --- MTP layers under another number


def test_an_mtp_layer_under_another_number(run: Run, tiny: Tiny, shared_tiny: Tiny) -> None:
    """SGLang reads model.layers.{num_hidden_layers} and nothing else, without a word."""
    model, head = shared_tiny("glm4_moe"), tiny("glm4_moe")
    assert run(head, model).result["fits"]
    with changed(head / "model.safetensors") as tensors:
        for name in list(tensors):
            moved = name.replace("model.layers.2.", "model.layers.61.")
            tensors[moved] = tensors.pop(name)
            if moved == name and name.startswith("model.layers."):
                del tensors[name]
    found = run(head, model, code=1).finding("mtp-index")
    assert "model.layers.2" in found["expected"] and "model.layers.61" in found["actual"]
    assert "mtp-index" in run(model, shared_tiny("glm4_moe", layers=3), code=1).codes
