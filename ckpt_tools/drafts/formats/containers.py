"""What heads come in: a safetensors folder, `pytorch_model.bin`, SpecForge's `training_state.pt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Finding, NotFound, error
from ...stores.base import Tensor
from ...stores.hf_folder import CONFIG, open_folder, read_json
from .torch_file import read_torch_file, tensors_of

BIN, TRAINING_STATE = "pytorch_model.bin", "training_state.pt"
DRAFT_STATE, STRATEGY = "draft_state_dict", "strategy"


@dataclass(frozen=True, slots=True)
class Container:
    """Tensors under the names of the source. `strategy` is what SpecForge's state says it trained, else ""."""

    root: Path
    config: Mapping[str, Any]
    config_path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, Tensor]
    strategy: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def where(self) -> str:
        return str(self.root)


def open_container(path: Path, config: Path | None = None) -> Container:
    """Open a head's files; `config` (a folder or a file) stands in for a config.json that is not beside them."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and any(path.glob("*.safetensors")):
        opened = open_folder(path)
        findings = (*opened.report.findings, *_twice(path))
        where = _config_path(folder, config)
        return Container(path, read_json(where), where, tuple(opened.files), opened.tensors, findings=findings)
    for file in (path,) if path.is_file() else (path / BIN, path / TRAINING_STATE):
        if file.is_file():
            return _torch_container(path, file, _config_path(folder, config))
    raise error(
        NotFound,
        "draft-not-found",
        "no weights here",
        where=str(path),
        expected=f"*.safetensors, {BIN}, {TRAINING_STATE} or a Megatron directory",
        actual="none of them" if path.exists() else "no such path",
        fix="check the path",
    )


def _config_path(folder: Path, config: Path | None) -> Path:
    path = config or folder
    path = path / CONFIG if path.is_dir() else path
    if path.is_file():
        return path
    raise error(
        NotFound,
        "config-not-found",
        "no config.json says what head this is",
        where=str(path),
        expected="the head's config.json",
        actual="no such file",
        fix="name it with --hf-config (a training state carries none: it is the draft config that the training was given)",
    )


def _twice(path: Path) -> tuple[Finding, ...]:
    if not (path / BIN).is_file():
        return ()
    what = f"{BIN} lies beside the safetensors files; it is not read"
    return (Finding("weights-twice", what, where=str(path), fix="remove the stale one", severity="warning"),)


def _torch_container(root: Path, file: Path, config: Path) -> Container:
    state, storages = read_torch_file(file)
    strategy = str(state.get(STRATEGY, "")) if DRAFT_STATE in state else ""
    inner = state.get(DRAFT_STATE, state)
    tensors = tensors_of(inner if isinstance(inner, Mapping) else {}, storages, 0, file)
    return Container(root, read_json(config), config, (file,), tensors, strategy)
