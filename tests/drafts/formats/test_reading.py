"""Every source format is read into the same spec, and what is odd about a head is said."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt_tools.drafts.spec import DraftSpec, Norms, open_draft
from ckpt_tools.errors import CkptError, NotFound

from .heads import (
    D2T,
    DV,
    EAGLE,
    EAGLE3,
    MTP,
    H,
    eagle3_config,
    eagle3_tensors,
    eagle_tensors,
    llama_config,
    random,
    speculators_config,
    tensors_of,
    write,
)


def codes(spec: DraftSpec, severity: str = "error") -> list[str]:
    return [finding.code for finding in spec.findings if finding.severity == severity]


@pytest.mark.parametrize(("folder", "kind", "count"), [(EAGLE, "eagle", 10), (EAGLE3, "eagle3", 15), (MTP, "mtp", 16)])
def test_the_trained_heads(folder: Path, kind: str, count: int) -> None:
    spec = open_draft(folder)
    stored = tensors_of(folder)
    assert (spec.kind, len(spec.tensors), spec.findings) == (kind, count, ())
    for entry in spec.tensors.values():
        expected = stored[entry.source].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert entry.read() == expected, entry.source


def test_canonical_names_and_sizes_of_eagle3() -> None:
    spec = open_draft(EAGLE3)
    assert spec.tensors["layers.0.hidden_norm.weight"].source == "midlayer.hidden_norm.weight"
    assert (spec.hidden_size, spec.head_dim, spec.num_key_value_heads, spec.draft_vocab_size) == (576, 64, 3, 8192)
    assert (spec.aux, spec.aux_count, spec.vocab_size) == (None, 3, 49152)
    offsets, mask = spec.d2t(), spec.t2d()
    assert offsets is not None and mask is not None
    assert [i + offset for i, offset in enumerate(offsets)] == [i for i, flag in enumerate(mask) if flag]


def _torch_save(folder: Path, state: Any, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / name)
    return folder


def test_every_producer_gives_the_same_tensors(tmp_path: Path) -> None:
    """SafeAILab (.bin), SpecForge (export and training state), speculators, ModelOpt, AngelSlim, SGLang."""
    mid, deep = eagle3_tensors(), eagle3_tensors("layers.0.")
    plain = llama_config(draft_vocab_size=DV)
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    state = write(tmp_path / "state", eagle3_config(), {})
    (state / "model.safetensors").unlink()
    _torch_save(state, {"draft_state_dict": mid, "strategy": "eagle3", "optimizer": {"step": 3}}, "training_state.pt")
    folders = {
        "safeailab": write(tmp_path / "safeailab", plain, mid, "pytorch_model.bin"),
        "specforge": state,
        "speculators": write(tmp_path / "speculators", speculators_config([2, 4, 5]), deep),
        "modelopt": write(
            tmp_path / "modelopt",
            eagle3_config(eagle_config={**ids["eagle_config"], "use_last_layernorm": True}),
            {**{k: v for k, v in deep.items() if k != "t2d"}},
        ),
        "angelslim": write(tmp_path / "angel", eagle3_config() | {"architectures": ["Eagle3LlamaForCausalLM"]}, mid),
        "sglang": write(tmp_path / "sglang", eagle3_config(**ids), {f"model.{k}": v for k, v in mid.items()}),
    }
    aux = {"safeailab": None, "specforge": None, "angelslim": None}
    for form, folder in folders.items():
        spec = open_draft(folder)
        assert (spec.form, spec.kind, codes(spec)) == (form, "eagle3", [])
        assert spec.aux == aux.get(form, (2, 4, 5)), form
        source = deep if form in ("speculators", "modelopt") else mid
        for name, entry in spec.tensors.items():
            bare = name if source is deep else name.replace("layers.0.", "midlayer.")
            assert entry.read() == source[bare].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert len(spec.tensors) == 15 - (form == "modelopt")
        assert list(spec.d2t() or ()) == D2T
    assert open_draft(folders["speculators"]).verifier == "some/model"


def test_norm_output_means_what_its_producer_means(tmp_path: Path) -> None:
    head = write(tmp_path / "head", eagle3_config(norm_output=True), eagle3_tensors())
    as_sglang, as_specforge = open_draft(head), open_draft(head, form="specforge")
    assert as_sglang.norms == Norms(output=True) and codes(as_sglang, "warning") == ["norm-output-unclear"]
    assert as_specforge.norms == Norms() and codes(as_specforge, "warning") == []
    write(head, eagle3_config(norm_output=False), eagle3_tensors())
    assert open_draft(head, form="specforge").norms == Norms(before_head=False)
    assert codes(open_draft(head), "warning") == ["norm-output-unclear"]


@pytest.mark.parametrize(
    ("config", "tensors", "code"),
    [
        ({}, {"more.weight": (3,)}, "tensors-unmapped"),
        ({}, {"norm.weight": None}, "tensors-missing"),
        ({}, {"lm_head.weight": None}, "lm-head-missing"),
        ({}, {"d2t": None}, "d2t-missing"),
        ({}, {"fc.weight": (H, 2 * H)}, "fc-shape"),
        ({}, {"norm.weight": (H + 1,)}, "shape"),
        ({"num_hidden_layers": 2}, {}, None),
        ({"norm_before_fc": True}, {}, "norm-flag"),
        ({}, {"input_norm.weight": (3 * H,)}, "norm-flag"),
        ({"fc_norm": True}, {f"fc_norm.{i}.weight": (H,) for i in range(3)}, None),
        ({"fc_norm": True, "norm_before_fc": True}, {}, "config-conflict"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, "x"]}}, {}, "config-value"),
        ({"num_attention_heads": None}, {}, "config-field-missing"),
        ({"hidden_size": 2 * H}, {}, "shape"),
        ({}, {"layers.0.hidden_norm.weight": (H,)}, "tensor-twice"),
    ],
)
def test_what_is_odd_is_an_error(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, tuple[int, ...] | None], code: str | None
) -> None:
    every = eagle3_tensors()
    for name, shape in tensors.items():
        if shape is None:
            del every[name]
        else:
            every |= random({name: shape})
    spec = open_draft(write(tmp_path / "head", eagle3_config() | config, every))
    assert (code in codes(spec)) if code else codes(spec) == []


def test_a_narrow_head_needs_its_own_embedding(tmp_path: Path) -> None:
    """The head's hidden size is half the target's: legal with an embedding of its own."""
    narrow = {"hidden_size": 16, "target_hidden_size": H}
    tensors = eagle3_tensors(target=H, h=16) | random({"embed_tokens.weight": (64, 16)})
    good = open_draft(write(tmp_path / "good", eagle3_config(**narrow), tensors))
    assert (codes(good), good.target_hidden_size, good.hidden_size) == ([], H, 16)
    unstated = open_draft(write(tmp_path / "unstated", eagle3_config(hidden_size=16), tensors))
    assert (codes(unstated), codes(unstated, "warning")) == ([], ["target-hidden-inferred"])
    assert unstated.target_hidden_size == H
    without = {name: t for name, t in tensors.items() if name != "embed_tokens.weight"}
    assert codes(open_draft(write(tmp_path / "bare", eagle3_config(**narrow), without))) == ["embed-required"]


def test_older_configs(tmp_path: Path) -> None:
    """EAGLE-1 configs of 2023 know neither grouped attention nor rope_theta: the projection and the class say."""
    config = {k: v for k, v in llama_config(bias=False).items() if k not in ("num_key_value_heads", "rope_theta")}
    spec = open_draft(write(tmp_path / "head", config, eagle_tensors(), "pytorch_model.bin"))
    assert (spec.form, spec.kind, spec.num_key_value_heads, spec.rope.theta) == ("safeailab", "eagle", 2, 10000.0)
    assert codes(spec) == []


def test_deep_names_of_modelopt_are_understood(tmp_path: Path) -> None:
    tensors = {name.replace("midlayer.", "midlayer.0."): t for name, t in eagle3_tensors().items()}
    spec = open_draft(write(tmp_path / "head", eagle3_config(), tensors))
    assert codes(spec) == [] and "layers.0.self_attn.q_proj.weight" in spec.tensors


def test_what_is_no_head(tmp_path: Path) -> None:
    ordinary = write(tmp_path / "model", llama_config(), eagle_tensors() | random({"model.norm.weight": (H,)}))
    tensors = {name: t for name, t in eagle_tensors().items() if name != "fc.weight"}
    write(ordinary, llama_config(), tensors)
    dflash = write(tmp_path / "dflash", speculators_config(speculators_model_type="dflash"), eagle3_tensors())
    for folder, code in ((ordinary, "not-a-draft-head"), (dflash, "head-kind-unsupported")):
        with pytest.raises(CkptError) as caught:
            open_draft(folder)
        assert caught.value.findings[0].code == code
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(NotFound):
            open_draft(folder)


def test_tensors_that_share_a_storage(tmp_path: Path) -> None:
    """Slices of one tensor begin somewhere inside its storage."""
    tensors = eagle_tensors()
    names = ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"]
    parts = [tensors[f"layers.0.{name}"] for name in names]
    fused = torch.cat(parts)
    for name, part in zip(names, fused.split([len(part) for part in parts]), strict=True):
        tensors[f"layers.0.{name}"] = part
    spec = open_draft(write(tmp_path / "head", llama_config(), tensors, "pytorch_model.bin"))
    for name, part in zip(names, parts, strict=True):
        read = torch.frombuffer(bytearray(spec.tensors[f"layers.0.{name}"].read()), dtype=torch.bfloat16)
        assert torch.equal(read, part.reshape(-1)), name


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch pwned",)


def test_a_hostile_bin_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = write(tmp_path / "head", llama_config(), {})
    (head / "model.safetensors").unlink()
    with zipfile.ZipFile(head / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"fc.weight": _Evil()}))
    with pytest.raises(CkptError) as caught:
        open_draft(head)
    assert caught.value.findings[0].code == "unsafe-pickle"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("damage", ["truncated", "no-archive", "strided"])
def test_a_damaged_bin_is_refused(tmp_path: Path, damage: str) -> None:
    tensors = eagle_tensors()
    if damage == "strided":
        tensors["fc.weight"] = tensors["fc.weight"].T
    head = write(tmp_path / "head", llama_config(), tensors, "pytorch_model.bin")
    file = head / "pytorch_model.bin"
    if damage != "strided":
        file.write_bytes(file.read_bytes()[:-500] if damage == "truncated" else b"nothing")
    with pytest.raises(CkptError) as caught:
        open_draft(head)
    assert caught.value.findings[0].code == ("tensor-unreadable" if damage == "strided" else "torch-file-unreadable")
